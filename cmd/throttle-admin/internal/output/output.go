// Package output writes results, as tables and texts or as JSON and YAML.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/goccy/go-yaml"
)

// Print writes a result to w: v as JSON or YAML, or in the format "table" what table writes.
func Print(w io.Writer, format string, v any, table func(*strings.Builder)) error {
	if format == "table" {
		var text strings.Builder
		table(&text)
		_, err := io.WriteString(w, text.String())
		return err
	}
	data, err := json.MarshalIndent(v, "", "  ")
	if err == nil && format == "yaml" {
		data, err = yaml.JSONToYAML(data)
	}
	if err != nil {
		return fmt.Errorf("output: %w", err)
	}
	_, err = fmt.Fprintln(w, strings.TrimSuffix(string(data), "\n"))
	return err
}
