// Package grpcthrottle reports to a dispatch.Subscription how the gRPC services that its handlers
// call have answered, so that it slows down while they are busy:
//
//	conn, err := grpc.NewClient(target,
//		grpc.WithUnaryInterceptor(grpcthrottle.Unary(sub)),
//		grpc.WithStreamInterceptor(grpcthrottle.Stream(sub)))
//
// Where the handler's own error is reported, as by [dispatch.Reporting], use Error instead:
//
//	reply, err := client.Post(ctx, order)
//	return reply, grpcthrottle.Error(err) // a busy answer becomes a *dispatch.BusyError
//
// Use one of the two, since each reports the answer. Neither waits for permits, or retries.
//
// RESOURCE_EXHAUSTED and UNAVAILABLE are busy, whatever returns them: grpc-go itself returns
// UNAVAILABLE when a connection fails, and RESOURCE_EXHAUSTED for a message that is larger than
// the client's limits.
package grpcthrottle

import (
	"context"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dispatchthrottle/throttle/dispatch"
)

// MaxRetryAfter is the longest delay of a RetryInfo that is used. A longer one is ignored as a
// mistake.
const MaxRetryAfter = 24 * time.Hour

// Error returns err in a form that [dispatch.OutcomeOf] understands. RESOURCE_EXHAUSTED and
// UNAVAILABLE are wrapped in a *[dispatch.BusyError], whose RetryAfter is that of a
// google.rpc.RetryInfo among the details; it is 0 if there is none, or if it is negative or above
// [MaxRetryAfter]. For errors.Is, DEADLINE_EXCEEDED is [context.DeadlineExceeded], and CANCELED
// is [context.Canceled]. Any other err, and nil, is returned as it is. [status.FromError] and
// [status.Code] return the same code and details as for err; the message of a busy answer begins
// with that of the BusyError.
func Error(err error) error {
	if o, _ := dispatch.OutcomeOf(err); o != dispatch.OutcomeFailed { // it understands err already
		return err
	}
	switch status.Code(err) {
	case codes.ResourceExhausted, codes.Unavailable:
		return &dispatch.BusyError{RetryAfter: retryAfter(err), Err: err}
	case codes.DeadlineExceeded:
		return &ended{err, context.DeadlineExceeded}
	case codes.Canceled:
		return &ended{err, context.Canceled}
	}
	return err
}

func retryAfter(err error) time.Duration {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			if d := info.GetRetryDelay().AsDuration(); d > 0 && d <= MaxRetryAfter {
				return d
			}
		}
	}
	return 0
}

// An ended error is that of a call whose context has ended, here or at the service.
type ended struct {
	error
	as error
}

// GRPCStatus returns the status of the error, with its own message.
func (e *ended) GRPCStatus() *status.Status { return status.Convert(e.error) }
func (e *ended) Unwrap() []error            { return []error{e.error, e.as} }

// Unary returns an interceptor that reports the outcome of each call to sub. OK is ok, and so is
// each code that blames the request, such as NOT_FOUND: those that stand for an HTTP 4xx.
// RESOURCE_EXHAUSTED and UNAVAILABLE are busy, as for [Error]; DEADLINE_EXCEEDED is a timeout;
// CANCELED is ignored; other codes are failed. The caller gets the error unchanged. A nil sub
// gets no reports.
func Unary(sub *dispatch.Subscription) grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, request, reply any, cc *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		err := invoke(ctx, method, request, reply, cc, opts...)
		sub.ReportOutcome(outcome(err))
		return err
	}
}

// Stream is [Unary] for streams: it reports once how a stream has ended, even if the caller does
// not read its end. A stream whose context is canceled is ignored.
func Stream(sub *dispatch.Subscription) grpc.StreamClientInterceptor {
	return func(
		ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
		open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		report := grpc.OnFinish(func(err error) { sub.ReportOutcome(outcome(err)) })
		return open(ctx, desc, cc, method, append(slices.Clip(opts), report)...)
	}
}

func outcome(err error) (dispatch.Outcome, time.Duration) {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.Unauthenticated, codes.FailedPrecondition, codes.Aborted, codes.OutOfRange:
		return dispatch.OutcomeOK, 0
	}
	return dispatch.OutcomeOf(Error(err))
}
