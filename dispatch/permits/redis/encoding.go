package redispermits

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dispatchthrottle/throttle/dispatch/busy"
	"github.com/dispatchthrottle/throttle/dispatch/schedule"
)

// arguments are ARGV of allocate.lua.
func arguments(r *schedule.Request) []any {
	c, ramp := &r.Carry, &r.Ramp
	args := []any{r.Subscription, encode(
		r.Weight, r.Reserved, r.Demand, r.Want, r.Returned, r.Held, r.RTT, r.Round,
		r.Burst, r.Rate, float64(r.Rev.Epoch), float64(r.Rev.Number), r.NotAfter, float64(r.Nonce),
		float64(c.Inc), float64(c.Seq), float64(c.Epoch), c.Eff, c.Fraction, c.Round,
		flag(r.Strict), r.MaxReserved,
		ramp.From, ramp.Over, ramp.TTL, flag(ramp.Relaxed),
		r.Low, r.High, c.Shifts, c.Refused, r.Lead,
	), r.Waiter, r.Source}
	if rule := &r.Rule; rule.Mode != busy.None {
		args = append(args, encode(
			float64(rule.Mode), rule.MinRate, rule.Tolerance, rule.RecoverRate, rule.RecoverValue,
			r.Answers.OK, r.Answers.Busy, r.Answers.RetryAfter,
		))
	}
	return args
}

func flag(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// encode writes numbers as the script reads them: doubles of eight bytes, little-endian.
func encode(numbers ...float64) []byte {
	text := make([]byte, 0, 8*len(numbers))
	for _, x := range numbers {
		text = binary.LittleEndian.AppendUint64(text, math.Float64bits(x))
	}
	return text
}

// numbers are such doubles, which are read one by one.
type numbers string

func (n *numbers) next() float64 {
	x := math.Float64frombits(binary.LittleEndian.Uint64([]byte((*n)[:8])))
	*n = (*n)[8:]
	return x
}

func (n *numbers) int() int64 { return int64(n.next()) }

// text is a text behind its length, or as much of it as there is.
func (n *numbers) text() string {
	all := string(*n)
	if all == "" {
		return ""
	}
	end := min(1+int(all[0]), len(all))
	*n = numbers(all[end:])
	return all[1:end]
}

// reply is what a call of allocateScript returned.
func (s *Store) reply(c *call) (schedule.Reply, error) {
	if c.err != nil {
		return schedule.Reply{}, s.wrap("allocate "+c.key, c.err)
	}
	text, err := c.cmd.Text()
	if err != nil {
		return schedule.Reply{}, s.wrap("allocate "+c.key, err)
	}
	return parseReply(text)
}

func parseReply(text string) (r schedule.Reply, err error) {
	n := numbers(text)
	const all = 18 * 8 // and the rival
	if len(text) != 16 && (len(text) < all || len(text) > all+schedule.MaxSource) {
		return r, fmt.Errorf("redis permit store: invalid answer %q of %d bytes: want 16, or %d to %d",
			text[:min(len(text), 100)], len(text), all, all+schedule.MaxSource)
	}
	kind := n.next()
	r.Late, r.Lost = kind == 1, kind == 2
	r.Now = n.next()
	if len(n) > 0 {
		r.N, r.Start, r.Share, r.Rate, r.Gap = n.next(), n.next(), n.next(), n.next(), n.next()
		r.Lead = n.next()
		r.Carry = schedule.Carry{
			Inc: n.int(), Seq: n.int(), Epoch: n.int(), Eff: n.next(), Fraction: n.next(),
			Round: n.next(),
		}
		r.Ahead, r.Since, r.Carry.Shifts, r.Carry.Refused = n.next(), n.next(), n.next(), n.next()
		r.Rival = string(n)
	}
	return r, nil
}

// stateNumbers is how many numbers the field l of a limit's hash has.
const stateNumbers = 23

// parseState reads the field l of a limit's hash: the version in decimal, a space, the numbers.
func parseState(text string) (s schedule.State, err error) {
	version, rest, _ := strings.Cut(text, " ")
	if v, err := strconv.Atoi(version); err == nil && v > schedule.Version &&
		v <= schedule.MaxVersion {
		return s, fmt.Errorf("state of version %d: this program knows %d: upgrade this program",
			v, schedule.Version)
	}
	if version != "4" && version != "5" || len(rest) != stateNumbers*8 {
		return s, errDamaged
	}
	n := numbers(rest)
	s.Inc, s.Seq, s.Last = n.int(), n.int(), n.next()
	s.Rev = schedule.Revision{Epoch: n.int(), Number: n.int()}
	s.Rate, s.Tail, s.Epoch, s.Start = n.next(), n.next(), n.int(), n.next()
	s.This = schedule.Sums{Weight: n.next(), Reserved: n.next(), Need: n.next()}
	s.Prev = schedule.Sums{Weight: n.next(), Reserved: n.next(), Need: n.next()}
	s.Resumed, s.Shifts = n.next(), n.next()
	s.Step = schedule.Step{By: n.next(), Ahead: n.next(), At: n.next()}
	s.Server, s.Checked, s.Quick = n.next(), n.next(), n.next()
	return s, nil
}

var errDamaged = errors.New("state is damaged: the next allocation replaces it")

// parseSources reads the field o of a limit's hash: whose policies these are, and a rival's claim.
// A text of another revision is that of a program that does not know the field.
func parseSources(text string, s *schedule.State) {
	const numbersBefore, ofRival = 3 * 8, 8 * 8
	if len(text) <= numbersBefore+1 {
		return
	}
	n := numbers(text)
	rev := schedule.Revision{Epoch: n.int(), Number: n.int()}
	heard, source := n.next(), n.text()
	if rev != s.Rev {
		return
	}
	if s.Source = source; len(n) <= ofRival {
		return
	}
	s.Heard = heard
	s.Rival.Rev = schedule.Revision{Epoch: n.int(), Number: n.int()}
	s.Rival.Rate = n.next()
	s.Rival.Ramp = schedule.Ramp{From: n.next(), Over: n.next(), TTL: n.next(), Relaxed: n.next() == 1}
	s.Rival.Heard, s.Rival.Source = n.next(), n.text()
}

// parseRamp reads the field r of a limit's hash; a limit without a ramp has none.
func parseRamp(text string, s *schedule.State) {
	s.Top = s.Rate
	if len(text) != 8*8 {
		return
	}
	n := numbers(text)
	s.Top = n.next()
	s.Ramp = schedule.Ramp{From: n.next(), Over: n.next(), TTL: n.next(), Relaxed: n.next() == 1}
	s.Line = schedule.Line{Rate: n.next(), Epoch: n.int(), Seen: n.next()}
}

// parseOutcomes reads the field b of a limit's hash; a limit without a busy.Rule has none.
func parseOutcomes(text string, s *schedule.State) {
	if len(text) != 14*8 {
		return
	}
	n := numbers(text)
	s.Top = n.next()
	s.Outcomes = schedule.Outcomes{
		Service: busy.State{
			Limit: n.next(), Low: n.next(), Good: n.next(), Since: n.next(), Cut: n.next(),
			Back: n.next(),
			Step: n.next(), NotYet: n.next(), Healthy: n.next(),
		},
		Window: schedule.Answers{OK: n.next(), Busy: n.next(), RetryAfter: n.next()},
		Since:  n.next(),
	}
}

// parseQueue reads the field q of a limit's hash: of each waiter the time at which it is removed,
// the length of its name, and the name.
func parseQueue(text string, s *schedule.State) {
	for len(text) >= 9 && len(text) >= 9+int(text[8]) {
		n := numbers(text)
		end := 9 + int(text[8])
		s.Queue = append(s.Queue, schedule.Waiter{Name: text[9:end], Until: n.next()})
		text = text[end:]
	}
}
