package grpcthrottle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	service "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	grpcthrottle "github.com/dispatchthrottle/throttle/adapters/grpc"
	"github.com/dispatchthrottle/throttle/dispatch"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

func TestMain(m *testing.M) { throttletest.Main(m, goleak.Find) }

// with is a status with a RetryInfo.
func with(code codes.Code, retry time.Duration) error {
	s, err := status.New(code, "no").WithDetails(&errdetails.ErrorInfo{Reason: "x"},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
	if err != nil {
		panic(err)
	}
	return s.Err()
}

func TestError(t *testing.T) {
	for _, c := range []struct {
		err   error
		want  dispatch.Outcome
		after time.Duration
	}{
		{nil, dispatch.OutcomeOK, 0},
		{errors.New("x"), dispatch.OutcomeFailed, 0},
		{context.DeadlineExceeded, dispatch.OutcomeTimeout, 0},
		{status.Error(codes.ResourceExhausted, "no"), dispatch.OutcomeBusy, 0},
		{with(codes.ResourceExhausted, 3*time.Second), dispatch.OutcomeBusy, 3 * time.Second},
		{with(codes.Unavailable, 1500*time.Millisecond), dispatch.OutcomeBusy, 1500 * time.Millisecond},
		{with(codes.Unavailable, -time.Second), dispatch.OutcomeBusy, 0},
		{with(codes.Unavailable, grpcthrottle.MaxRetryAfter), dispatch.OutcomeBusy, grpcthrottle.MaxRetryAfter},
		{with(codes.Unavailable, grpcthrottle.MaxRetryAfter+1), dispatch.OutcomeBusy, 0},
		{fmt.Errorf("post: %w", with(codes.Unavailable, time.Second)), dispatch.OutcomeBusy, time.Second},
		{with(codes.DeadlineExceeded, time.Second), dispatch.OutcomeTimeout, 0},
		{with(codes.Canceled, time.Second), dispatch.OutcomeIgnored, 0},
		{with(codes.Internal, time.Second), dispatch.OutcomeFailed, 0},
		{status.Error(codes.NotFound, "no"), dispatch.OutcomeFailed, 0},
	} {
		got := grpcthrottle.Error(c.err)
		o, after := dispatch.OutcomeOf(got)
		assert.Equal(t, c.want, o, "%v", c.err)
		assert.Equal(t, c.after, after, "%v", c.err)
		require.ErrorIs(t, got, c.err)
		assert.Equal(t, status.Code(c.err), status.Code(got))
		before, isStatus := status.FromError(c.err)
		s, ok := status.FromError(got)
		assert.Equal(t, isStatus, ok, "%v", c.err)
		assert.Len(t, s.Details(), len(before.Details()))
		if o == dispatch.OutcomeBusy {
			assert.Contains(t, s.Message(), before.Message())
		} else {
			assert.Equal(t, before.Message(), s.Message())
		}
		assert.Equal(t, got, grpcthrottle.Error(got), "a second time changes nothing")
	}
}

// A server answers with err, having waited for the client to go first if it is slow.
type server struct {
	service.UnimplementedTestServiceServer
	err  error
	slow bool
}

func (s *server) UnaryCall(ctx context.Context, _ *service.SimpleRequest) (*service.SimpleResponse, error) {
	if s.slow {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &service.SimpleResponse{Username: "x"}, s.err
}

func (s *server) StreamingOutputCall(
	_ *service.StreamingOutputCallRequest, stream service.TestService_StreamingOutputCallServer,
) error {
	for range 3 {
		if err := stream.Send(&service.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
	if s.slow {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	return s.err
}

func (s *server) StreamingInputCall(stream service.TestService_StreamingInputCallServer) error {
	if s.err != nil {
		return s.err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return stream.SendAndClose(&service.StreamingInputCallResponse{AggregatedPayloadSize: 7})
		}
	}
}

// dial serves s, and returns a client whose calls are reported; end ends both.
func dial(t testing.TB, sub *dispatch.Subscription, s *server) (client service.TestServiceClient, end func()) {
	listener := bufconn.Listen(1 << 16)
	srv := grpc.NewServer()
	service.RegisterTestServiceServer(srv, s)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///service",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return listener.DialContext(ctx)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(grpcthrottle.Unary(sub)), grpc.WithStreamInterceptor(grpcthrottle.Stream(sub)))
	require.NoError(t, err)
	return service.NewTestServiceClient(conn), func() {
		_ = conn.Close() // a test may have closed it
		srv.Stop()
		require.NoError(t, <-done)
	}
}

// answers are the answers of a service, with the outcomes that are reported for them.
var answers = []struct {
	err   error
	want  dispatch.Outcome
	after time.Duration
}{
	{nil, dispatch.OutcomeOK, 0},
	{with(codes.ResourceExhausted, 3*time.Second), dispatch.OutcomeBusy, 3 * time.Second},
	{status.Error(codes.Unavailable, "no"), dispatch.OutcomeBusy, 0},
	{status.Error(codes.DeadlineExceeded, "no"), dispatch.OutcomeTimeout, 0},
	{status.Error(codes.Canceled, "no"), dispatch.OutcomeIgnored, 0},
	{status.Error(codes.NotFound, "no"), dispatch.OutcomeOK, 0},
	{status.Error(codes.InvalidArgument, "no"), dispatch.OutcomeOK, 0},
	{status.Error(codes.Internal, "no"), dispatch.OutcomeFailed, 0},
	{status.Error(codes.Unimplemented, "no"), dispatch.OutcomeFailed, 0},
	{errors.New("x"), dispatch.OutcomeFailed, 0}, // UNKNOWN
}

func TestUnary(t *testing.T) {
	for _, c := range answers {
		o, after := throttletest.Outcome(t, func(sub *dispatch.Subscription) {
			client, end := dial(t, sub, &server{err: c.err})
			defer end()
			reply, err := client.UnaryCall(t.Context(), &service.SimpleRequest{})
			if s, ok := status.FromError(err); assert.True(t, ok) {
				assert.Equal(t, status.Code(c.err), s.Code())
				assert.Len(t, s.Details(), len(status.Convert(c.err).Details()))
			}
			if err == nil {
				assert.Equal(t, "x", reply.GetUsername())
			}
		})
		assert.Equal(t, c.want, o, "%v", c.err)
		assert.Equal(t, c.after, after, "%v", c.err)
	}
	client, end := dial(t, nil, &server{err: with(codes.Unavailable, 0)})
	defer end()
	_, err := client.UnaryCall(t.Context(), &service.SimpleRequest{})
	assert.Equal(t, codes.Unavailable, status.Code(err))
}

// TestEndedCalls: a call that ends on the client's side is reported by its context, and a
// connection that cannot be made is reported as busy.
func TestEndedCalls(t *testing.T) {
	o, _ := throttletest.Outcome(t, func(sub *dispatch.Subscription) {
		client, end := dial(t, sub, &server{slow: true})
		defer end()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := client.UnaryCall(ctx, &service.SimpleRequest{})
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
	})
	assert.Equal(t, dispatch.OutcomeTimeout, o)
	o, _ = throttletest.Outcome(t, func(sub *dispatch.Subscription) {
		client, end := dial(t, sub, &server{slow: true})
		defer end()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		_, err := client.UnaryCall(ctx, &service.SimpleRequest{})
		assert.Equal(t, codes.Canceled, status.Code(err))
	})
	assert.Equal(t, dispatch.OutcomeIgnored, o)
	for _, stream := range []bool{false, true} {
		o, _ = throttletest.Outcome(t, func(sub *dispatch.Subscription) {
			conn, err := grpc.NewClient("passthrough:///service",
				grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
					return nil, io.EOF
				}),
				grpc.WithUnaryInterceptor(grpcthrottle.Unary(sub)),
				grpc.WithStreamInterceptor(grpcthrottle.Stream(sub)))
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close()) }()
			client := service.NewTestServiceClient(conn)
			if stream {
				_, err = client.StreamingInputCall(t.Context())
			} else {
				_, err = client.UnaryCall(t.Context(), &service.SimpleRequest{})
			}
			assert.Equal(t, codes.Unavailable, status.Code(err))
		})
		assert.Equal(t, dispatch.OutcomeBusy, o)
	}
}

// TestStream: how a stream ends is reported once it is read.
func TestStream(t *testing.T) {
	for _, c := range answers {
		o, after := throttletest.Outcome(t, func(sub *dispatch.Subscription) {
			client, end := dial(t, sub, &server{err: c.err})
			defer end()
			stream, err := client.StreamingOutputCall(t.Context(), &service.StreamingOutputCallRequest{})
			require.NoError(t, err)
			received := 0
			for ; err == nil; received++ {
				_, err = stream.Recv()
			}
			assert.Equal(t, 3+1, received)
			if c.err == nil {
				assert.Equal(t, io.EOF, err)
			} else {
				assert.Equal(t, status.Code(c.err), status.Code(err))
				assert.Len(t, status.Convert(err).Details(), len(status.Convert(c.err).Details()))
			}
			_, again := stream.Recv()
			assert.Error(t, again)
		})
		assert.Equal(t, c.want, o, "%v", c.err)
		assert.Equal(t, c.after, after, "%v", c.err)

		o, after = throttletest.Outcome(t, func(sub *dispatch.Subscription) {
			client, end := dial(t, sub, &server{err: c.err})
			defer end()
			stream, err := client.StreamingInputCall(t.Context())
			require.NoError(t, err)
			for range 3 {
				// io.EOF once the service has answered
				_ = stream.Send(&service.StreamingInputCallRequest{})
			}
			reply, err := stream.CloseAndRecv()
			assert.Equal(t, status.Code(c.err), status.Code(err))
			if err == nil {
				assert.Equal(t, int32(7), reply.GetAggregatedPayloadSize())
			}
		})
		assert.Equal(t, c.want, o, "sent: %v", c.err)
		assert.Equal(t, c.after, after, "sent: %v", c.err)
	}
}

// TestUnreadStream: a stream that is not read to its end ends with its context or its connection.
func TestUnreadStream(t *testing.T) {
	for name, c := range map[string]struct {
		want     dispatch.Outcome
		deadline bool
		end      func(ctx context.Context, cancel context.CancelFunc, end func())
	}{
		"canceled": {
			dispatch.OutcomeIgnored, false, func(_ context.Context, cancel context.CancelFunc, _ func()) { cancel() },
		},
		"deadline": {
			dispatch.OutcomeTimeout, true, func(ctx context.Context, _ context.CancelFunc, _ func()) { <-ctx.Done() },
		},
		"connection": {
			dispatch.OutcomeIgnored, false, func(_ context.Context, _ context.CancelFunc, end func()) { end() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			timeout := time.Second
			throttletest.Until(t, "a message comes before the deadline", func() bool {
				timeout *= 2
				late := false
				o, _ := throttletest.Outcome(t, func(sub *dispatch.Subscription) {
					client, end := dial(t, sub, &server{slow: true})
					within := throttletest.Patience
					if c.deadline {
						within = timeout
					}
					ctx, cancel := context.WithTimeout(t.Context(), within)
					defer cancel()
					stream, err := client.StreamingOutputCall(ctx, &service.StreamingOutputCallRequest{})
					if err == nil {
						_, err = stream.Recv()
					}
					if late = late || c.deadline && status.Code(err) == codes.DeadlineExceeded; late {
						end()
						return
					}
					require.NoError(t, err)
					c.end(ctx, cancel, end)
					// the stream has heard of it by then: of what is ignored nothing tells
					time.Sleep(500 * time.Millisecond)
					if name != "connection" {
						end()
					}
				})
				if !late {
					assert.Equal(t, c.want, o)
				}
				return !late
			})
		})
	}
}

func ExampleError() {
	answer, _ := status.New(codes.ResourceExhausted,
		"quota").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(3 * time.Second)})
	err := grpcthrottle.Error(answer.Err())
	fmt.Println(err)
	fmt.Println(status.Code(err))
	o, retryAfter := dispatch.OutcomeOf(err)
	fmt.Println(o == dispatch.OutcomeBusy, retryAfter)
	// Output:
	// busy, retry after 3s: rpc error: code = ResourceExhausted desc = quota
	// ResourceExhausted
	// true 3s
}
