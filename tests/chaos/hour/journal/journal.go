// Package journal records the messages that consumers are given, and checks what brokers and
// throttles must not do: lose messages, or reorder those of an owner.
package journal

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// A Position is a message's place in its partition: Kafka's offset as Entry, or Pulsar's ledger and
// entry.
type Position struct{ Ledger, Entry int64 }

// Compare returns -1, 0 or 1 if p is before q, is q or is after it.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Ledger, q.Ledger), cmp.Compare(p.Entry, q.Entry))
}

// A Delivery is a message that a consumer was given.
type Delivery struct {
	At        int64 // Unix nanoseconds
	Partition int
	Position  Position
	ID        string // the producer's, without blanks
}

// A Session is what a consumer was given from one subscribe to the next.
type Session struct {
	Build      string // of the consumer
	Start      int64  // Unix nanoseconds
	Deliveries []Delivery
}

// A Writer appends to a consumer's journal. Each line is one write, so that none of them is lost
// when the process is killed.
type Writer struct{ file *os.File }

// Open opens a journal, which is created if there is none.
func Open(name string) (*Writer, error) {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &Writer{f}, nil
}

// Begin records that a session begins.
func (w *Writer) Begin(build string) error {
	_, err := fmt.Fprintf(w.file, "session %d %s\n", time.Now().UnixNano(), build)
	return err
}

// Delivered records a delivery at d.At. It is called before the message is acknowledged.
func (w *Writer) Delivered(d Delivery) error {
	_, err := fmt.Fprintf(w.file, "%d %d %d %d %s\n",
		d.At, d.Partition, d.Position.Ledger, d.Position.Entry, d.ID)
	return err
}

// Close closes the journal.
func (w *Writer) Close() error { return w.file.Close() }

// Read reads a consumer's journal; one that does not exist is empty.
func Read(name string) ([]Session, error) {
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	return parse(f)
}

func parse(text io.Reader) (all []Session, err error) {
	lines := bufio.NewReader(text)
	for n := 1; ; n++ {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return all, nil // a line that is being written is not read
		} else if err != nil {
			return nil, err
		}
		words := strings.Fields(line)
		switch {
		case len(words) == 3 && words[0] == "session":
			s := Session{Build: words[2]}
			s.Start, err = strconv.ParseInt(words[1], 10, 64)
			all = append(all, s)
		case len(words) == 5 && len(all) > 0:
			var d Delivery
			d, err = delivery(words)
			s := &all[len(all)-1]
			s.Deliveries = append(s.Deliveries, d)
		default:
			err = errors.New("want a session, or time, partition, ledger, entry and ID in one")
		}
		if err != nil {
			return nil, fmt.Errorf("journal: line %d: %q: %w", n, line, err)
		}
	}
}

// delivery reads the words of a line.
func delivery(words []string) (d Delivery, err error) {
	var numbers [4]int64
	for i := range numbers {
		n, bad := strconv.ParseInt(words[i], 10, 64)
		numbers[i], err = n, errors.Join(err, bad)
	}
	return Delivery{
		At: numbers[0], Partition: int(numbers[1]), Position: Position{numbers[2], numbers[3]},
		ID: strings.Clone(words[4]),
	}, err
}
