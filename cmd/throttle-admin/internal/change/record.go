package change

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dispatchthrottle/throttle/cmd/throttle-admin/internal/output"
	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/internal/printable"
	"github.com/dispatchthrottle/throttle/policy"
)

// A RecordView is one change of the history.
type RecordView struct {
	Revision int64     `json:"revision"`
	Time     time.Time `json:"time,omitzero"`
	Author   string    `json:"author,omitempty"` // empty: unknown
	Reason   string    `json:"reason,omitempty"`
	Found    bool      `json:"found,omitempty"` // made past the tools, at some time before Time
	First    bool      `json:"first,omitempty"` // the history begins here
	Error    string    `json:"error,omitempty"` // why the record cannot be read
	Changes  []View    `json:"changes"`
}

// RecordOf returns a record as people see it.
func RecordOf(r configstore.Record) RecordView {
	v := RecordView{
		Revision: r.Revision, Time: r.Time, Author: r.Author, Reason: r.Reason, Found: r.Found,
		First: r.First, Changes: []View{},
	}
	if r.Err != nil {
		v.Error = r.Err.Error()
	}
	for _, c := range r.Changes {
		v.Changes = append(v.Changes, viewsOf(c)...)
	}
	return v
}

// unknown stands for a value that is not known.
const unknown = "unknown"

// viewsOf returns the changes of the fields of one entry.
func viewsOf(c configstore.Changed) (views []View) {
	fields := []string{""} // both values are unknown
	if !c.Was.Unknown || !c.Is.Unknown {
		fields = fieldsOf(c.Was)
		for _, f := range fieldsOf(c.Is) {
			if !slices.Contains(fields, f) {
				fields = append(fields, f)
			}
		}
	}
	for _, field := range fields {
		was, is := textOf(c.Was, field), textOf(c.Is, field)
		if was == is && was != unknown && c.Was.Expires.Equal(c.Is.Expires) {
			continue
		}
		views = append(views, View{
			Scope: c.Scope.String(), Section: sectionOf(c.Key), Field: field, Before: was, After: is,
			Expires: c.Is.Expires, Temporary: c.Key.Field != "", BeforeExpires: c.Was.Expires,
			before: pinned(c.Key, c.Was, was), after: pinned(c.Key, c.Is, is),
		})
	}
	return views
}

func fieldsOf(v configstore.Value) []string {
	if v.Unknown || v.Settings == nil {
		return nil
	}
	return policy.Fields(v.Settings)
}

func textOf(v configstore.Value, field string) string {
	switch {
	case v.Unknown:
		return unknown
	case v.Settings == nil:
		return ""
	}
	return policy.Text(v.Settings, field)
}

// pinned returns the text of a value in a table.
func pinned(k configstore.Key, v configstore.Value, text string) string {
	switch {
	case text == "" && k.Field != "":
		return "not pinned"
	case text == "":
		return "inherited"
	case !v.Expires.IsZero():
		return text + ", pinned until " + when(v.Expires)
	}
	return text
}

func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// String returns a record as one line, in which what is not printable is escaped.
func (v RecordView) String() string {
	reason := ""
	if v.Reason != "" {
		reason = fmt.Sprintf(" (%s)", shortened(v.Reason))
	}
	return printable.Line(fmt.Sprintf("revision %d, %s, by %s: %s%s", v.Revision, when(v.Time), v.by(),
		v.what(maxShown), reason))
}

// by names the author.
func (v RecordView) by() string { return shortened(cmp.Or(v.Author, unknown)) }

// maxShown is how many of a change's fields a line of the history shows.
const maxShown = 3

// what returns the first n changed fields in words.
func (v RecordView) what(n int) string {
	if v.Error != "" {
		return "unreadable: " + shortened(v.Error)
	}
	var texts []string
	subject := ""
	for i, c := range v.Changes {
		if i == n {
			texts = append(texts, fmt.Sprintf("and %d more", len(v.Changes)-i))
			break
		}
		text := fmt.Sprintf("%s: %s -> %s", cmp.Or(c.Field, "all"), c.before, c.after)
		if c.subject() != subject {
			subject = c.subject()
			text = subject + " " + text
		}
		texts = append(texts, text)
	}
	if v.First && v.Found {
		texts = append(texts, "(held when the history begins)")
	}
	return strings.Join(texts, "; ")
}

// shortened returns a text as far as a line of a table has room for it.
func shortened(text string) string { return cut(text, 80) }

// cut returns at most n characters of a text, with ... at the end if there are more.
func cut(text string, n int) string {
	if r := []rune(text); len(r) > n {
		return string(r[:n-3]) + "..."
	}
	return text
}

// WriteRecords writes records as a table.
func WriteRecords(w *strings.Builder, records []configstore.Record) {
	var rows [][]string
	for _, r := range records {
		v := RecordOf(r)
		rows = append(rows, []string{
			fmt.Sprint(v.Revision), when(v.Time), v.by(), v.what(maxShown), output.Dash(shortened(v.Reason)),
		})
	}
	output.Table(w, []string{"REVISION", "TIME", "AUTHOR", "CHANGE", "REASON"}, rows)
}

// Write writes a record with all its fields.
func (v RecordView) Write(w *strings.Builder) {
	output.Labelled(w, "revision  ", fmt.Sprint(v.Revision))
	output.Labelled(w, "time      ", when(v.Time))
	// Longer ones were not written by a Store.
	output.Labelled(w, "author    ", cut(cmp.Or(v.Author, unknown), configstore.MaxAuthor))
	output.Labelled(w, "reason    ", output.Dash(cut(v.Reason, configstore.MaxReason)))
	if v.Found {
		output.Labelled(w, "note      ", "made past the tools, or without history, some time before; "+
			"values in between are lost")
	}
	if v.First {
		output.Labelled(w, "note      ", "the history begins here")
	}
	if v.Error != "" {
		output.Labelled(w, "error     ", v.Error)
	}
	if len(v.Changes) > 0 {
		fmt.Fprintln(w)
		WriteTable(w, v.Changes)
	}
}
