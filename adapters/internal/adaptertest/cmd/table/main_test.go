package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/adapters/internal/adaptertest"
)

// TestPageIsUpToDate: the page has a row for each behaviour, and no other.
func TestPageIsUpToDate(t *testing.T) {
	page, err := os.ReadFile("../../../../../docs/reference/adapters.md")
	require.NoError(t, err)
	var in strings.Builder
	for _, client := range []string{"franz-go", "kafka-go", "pulsar-client-go"} {
		for _, behaviour := range adaptertest.Names() {
			in.WriteString(client + "\t" + behaviour + "\ttrue\n")
		}
	}
	var want bytes.Buffer
	require.NoError(t, run(strings.NewReader(in.String()), &want))
	assert.Equal(t, want.String(), string(page), "make behaviours writes it")
}

// TestFaults: a test that failed once, or did not run, is a fault.
func TestFaults(t *testing.T) {
	first := adaptertest.Names()[0]
	var out bytes.Buffer
	err := run(strings.NewReader("kafka-go\t"+first+"\ttrue\nkafka-go\t"+first+"\tfalse\nkafka-go\t"+first+"\ttrue\n"), &out)
	assert.ErrorContains(t, err, "kafka-go: "+first+": failed, or not run")
	assert.ErrorContains(t, err, "kafka-go: "+adaptertest.Names()[1]+": failed, or not run")
	assert.ErrorContains(t, run(strings.NewReader("nothing\n"), &out), `"nothing": want client, behaviour`)
}
