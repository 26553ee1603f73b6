// Package output writes results, as tables and texts or as JSON and YAML.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/dispatchthrottle/throttle/internal/printable"
)

// Print writes a result to w: v as JSON or YAML, or in the format "table" what table writes. What
// is not printable is escaped: in JSON and YAML so that the values stay exact.
func Print(w io.Writer, format string, v any, table func(*strings.Builder)) error {
	if format == "table" {
		var text strings.Builder
		table(&text)
		_, err := io.WriteString(w, printable.Text(text.String()))
		return err
	}
	data, err := json.MarshalIndent(v, "", "  ")
	text := printable.JSON(string(data))
	if err == nil && format == "yaml" {
		data, err = yaml.JSONToYAML(data)
		if printable.Text(string(data)) == string(data) {
			text = string(data)
		} // else JSON, which is YAML: without quotes, YAML has no escapes
	}
	if err != nil {
		return fmt.Errorf("output: %w", err)
	}
	_, err = fmt.Fprintln(w, strings.TrimSuffix(text, "\n"))
	return err
}
