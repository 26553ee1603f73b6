package kafkathrottle

import (
	"context"
	"time"
)

// SetOffset drops the message that waits for its permit, if there is one, and continues at offset.
func (r *Reader) SetOffset(offset int64) error {
	return r.seek(r.Reader.SetOffset(offset))
}

// SetOffsetAt is SetOffset for the first message that is not older than t.
func (r *Reader) SetOffsetAt(ctx context.Context, t time.Time) error {
	return r.seek(r.Reader.SetOffsetAt(ctx, t))
}

// seek starts the next generation after a seek of kafka-go's, unless that failed.
func (r *Reader) seek(err error) error {
	if err == nil && r.lim != nil && !r.group {
		r.sought.Store(r.Reader.Offset())
		r.held.Store(-1)
		r.receiver.Next()
	}
	return err
}

// afterSeek drops the message in hand, if there is one. But it may be the first of the new offset,
// if it was fetched during the seek.
func (r *Reader) afterSeek() {
	if !r.receiver.Keeps() {
		return
	}
	offset := r.receiver.Kept().Offset
	if offset < r.sought.Load() || r.Reader.Offset() != offset+1 {
		r.drop()
	}
}

// Offset returns the offset after the last message that was returned, or -1 with a group.
func (r *Reader) Offset() int64 {
	if r.lim != nil && !r.group {
		if held := r.held.Load(); held >= 0 {
			return held
		}
	}
	return r.Reader.Offset()
}
