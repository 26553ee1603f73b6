package franzthrottle

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// settings are what kgo's options say.
type settings struct {
	group         string
	blocks        bool // BlockRebalanceOnPoll
	marks         bool // AutoCommitMarks
	transactional bool
	committed     bool // only committed records of transactions are read
	regex         bool
	maxWait       time.Duration
	several       bool       // topics are read
	start         kgo.Offset // where partitions without a commit begin
	direct        *direct    // nil for a group or a regex

	assigned, revoked, lost callback
	autoCommitted           func(*kgo.Client, *kmsg.OffsetCommitRequest, *kmsg.OffsetCommitResponse, error)
}

const readCommitted = 1 // as Kafka's protocol has it

// A callback is one of a group.
type callback = func(context.Context, *kgo.Client, map[string][]int32)

// settingsOf returns what options say, and why they cannot be used. kgo has no way to ask options
// without a client. So kgo.NewClient is called, and left by a panic before it has started anything
// and before other hooks hear of it: they may not bear two clients.
func settingsOf(opts []kgo.Opt) (s settings, err error) {
	var found finder
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(&found) {
				panic(r)
			}
		}()
		_, err = kgo.NewClient(slices.Concat([]kgo.Opt{kgo.WithHooks(&found)}, opts, []kgo.Opt{kgo.WithContext(ended)})...)
	}()
	return found.settings, errors.Join(err, found.err)
}

// A finder is a hook that reads the settings of a client that begins.
type finder struct {
	settings settings
	err      error
}

// OnNewClient implements kgo.HookNewClient.
func (f *finder) OnNewClient(cl *kgo.Client) {
	s := &f.settings
	s.group, _ = cl.OptValue(kgo.ConsumerGroup).(string)
	s.blocks, _ = cl.OptValue(kgo.BlockRebalanceOnPoll).(bool)
	s.marks, _ = cl.OptValue(kgo.AutoCommitMarks).(bool)
	s.assigned, _ = cl.OptValue(kgo.OnPartitionsAssigned).(callback)
	s.revoked, _ = cl.OptValue(kgo.OnPartitionsRevoked).(callback)
	s.lost, _ = cl.OptValue(kgo.OnPartitionsLost).(callback)
	s.autoCommitted, _ = cl.OptValue(kgo.AutoCommitCallback).(func(
		*kgo.Client, *kmsg.OffsetCommitRequest, *kmsg.OffsetCommitResponse, error))
	if id, ok := cl.OptValues(kgo.TransactionalID)[0].(string); ok {
		s.transactional = id != ""
	}
	s.start, _ = cl.OptValue(kgo.ConsumeStartOffset).(kgo.Offset)
	s.regex, _ = cl.OptValue(kgo.ConsumeRegex).(bool)
	s.maxWait, _ = cl.OptValue(kgo.FetchMaxWait).(time.Duration)
	topics, _ := cl.OptValue(kgo.ConsumeTopics).(map[string]*regexp.Regexp)
	partitions, _ := cl.OptValue(kgo.ConsumePartitions).(map[string]map[int32]kgo.Offset)
	if s.group == "" && !s.regex {
		s.direct = newDirect(topics, partitions)
	}
	s.several = s.regex || len(topics)+len(partitions) > 1
	level, _ := cl.OptValue(kgo.FetchIsolationLevel).(int8)
	s.committed = level == readCommitted
	disabled, _ := cl.OptValue(kgo.DisableAutoCommit).(bool)
	share, _ := cl.OptValue(kgo.ShareGroup).(string)
	switch {
	case share != "":
		f.err = errors.New("franzthrottle: a share group: its records have to be acknowledged within " +
			"a time, and cannot wait for permits: want kgo.ConsumerGroup")
	case s.group != "" && !s.marks && !disabled && !s.transactional:
		f.err = errors.New("franzthrottle: plain auto-commit would commit records that were not returned: " +
			"want kgo.AutoCommitMarks, with MarkCommitRecords for what is done, or kgo.DisableAutoCommit")
	}
	panic(f)
}
