package numaflowthrottle

import (
	"context"
	"time"

	"github.com/numaproj/numaflow-go/pkg/mapper"
	"github.com/numaproj/numaflow-go/pkg/sourcer"
)

// WithNacks has a sink or map answer with a nack where it would retry or wait: a sink for data that
// are [Busy], both for data that still wait when the process stops ([WithProcess]). The data plane
// passes a nack to the source, and continues.
//
// Use it only if the source redelivers: Pulsar, JetStream, SQS, and user-defined sources whose Nack
// does, as that of examples/numaflow-source. In a pipeline, JetStream feeds the vertices behind the
// source, and redelivers. The generator, NATS core and the built-in Kafka source ignore nacks: the
// message is lost, and Kafka commits past it.
func WithNacks() Option { return func(o *options) { o.nacks = true } }

// nackDelay is the delay of a nack for a message without a permit: the source need not redeliver
// it at once.
const nackDelay = time.Second

// nack returns the options of a nack for a message without a permit.
func nack(reason error) *mapper.NackOptions {
	delay := uint64(nackDelay.Milliseconds())
	return &mapper.NackOptions{Reason: new(reason.Error()), Delay: &delay}
}

// Nack is the user's.
func (s *source) Nack(ctx context.Context, request sourcer.NackRequest) {
	refused := request.Offsets()
	offsets := make([]sourcer.Offset, len(refused))
	for i, r := range refused {
		offsets[i] = r.Offset
	}
	s.unacknowledged.settle(offsets)
	s.Sourcer.Nack(ctx, request)
}
