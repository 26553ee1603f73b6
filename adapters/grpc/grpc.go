// Package grpcthrottle tells a dispatch.Subscription how the gRPC services that its handlers call have answered, so that it slows down for
// busy ones:
//
//	conn, err := grpc.NewClient(target, grpc.WithUnaryInterceptor(grpcthrottle.Unary(sub)), grpc.WithStreamInterceptor(grpcthrottle.Stream(sub)))
//
// or, where the handler's own error is reported, as by [dispatch.Reporting]:
//
//	reply, err := client.Post(ctx, order)
//	return reply, grpcthrottle.Error(err) // with a *dispatch.BusyError in it
//
// Use one of the two: what both report counts twice. Neither waits for permits, nor tries again.
//
// Busy are RESOURCE_EXHAUSTED and UNAVAILABLE, wherever they come from: grpc-go itself says UNAVAILABLE if a connection cannot be made or
// breaks, and RESOURCE_EXHAUSTED of a message that is larger than the client sends or takes.
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

// MaxRetryAfter is the longest delay of a RetryInfo that is believed. More is taken for a mistake.
const MaxRetryAfter = 24 * time.Hour

// Error returns err so that [dispatch.OutcomeOf] can read its status: RESOURCE_EXHAUSTED and UNAVAILABLE in a *[dispatch.BusyError], whose RetryAfter is
// that of a google.rpc.RetryInfo among the details (0 if there is none, or if it is negative or above [MaxRetryAfter]); DEADLINE_EXCEEDED as
// [context.DeadlineExceeded], and CANCELED as [context.Canceled], for errors.Is. Any other err comes back as it is, and nil as nil. The status stays: code
// and details are what [status.FromError] and [status.Code] say of err; the message of a busy one begins with the BusyError's.
func Error(err error) error {
	if o, _ := dispatch.OutcomeOf(err); o != dispatch.OutcomeFailed { // it can be read
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

// An ended error is one of a call whose context has ended, here or at the service.
type ended struct {
	error
	as error
}

// GRPCStatus is err's, with its message as it was.
func (e *ended) GRPCStatus() *status.Status { return status.Convert(e.error) }
func (e *ended) Unwrap() []error            { return []error{e.error, e.as} }

// Unary returns an interceptor that reports the outcome of each call to sub: OK is ok, and so is each code that blames the request (those that
// stand for an HTTP 4xx, such as NOT_FOUND); RESOURCE_EXHAUSTED and UNAVAILABLE are busy, as by [Error], DEADLINE_EXCEEDED is a time-out, CANCELED
// is ignored, all else failed. What the caller gets is as it was. A nil sub gets no reports.
func Unary(sub *dispatch.Subscription) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, request, reply, cc, opts...)
		sub.ReportOutcome(outcome(err))
		return err
	}
}

// Stream is [Unary] for streams: it reports how a stream has ended, once, whether anybody reads that or not; a stream whose context is canceled
// is ignored.
func Stream(sub *dispatch.Subscription) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		report := grpc.OnFinish(func(err error) { sub.ReportOutcome(outcome(err)) })
		return open(ctx, desc, cc, method, append(slices.Clip(opts), report)...)
	}
}

func outcome(err error) (dispatch.Outcome, time.Duration) {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition,
		codes.Aborted, codes.OutOfRange:
		return dispatch.OutcomeOK, 0
	}
	return dispatch.OutcomeOf(Error(err))
}
