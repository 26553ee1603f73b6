package scale

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A usage is what a Redis uses, from its INFO.
type usage struct {
	cpu         float64 // seconds, of all threads
	in, out     float64 // bytes
	commands    float64
	memory      float64 // bytes
	connections float64
	answer      float64 // bytes of the INFO itself
}

func usageOf(t testing.TB, client *redis.Client) (u usage) {
	t.Helper()
	info, err := client.Info(context.Background(), "everything").Result()
	require.NoError(t, err)
	fields := map[string]*float64{
		"total_net_input_bytes": &u.in, "total_net_output_bytes": &u.out,
		"total_commands_processed": &u.commands, "used_memory": &u.memory,
		"connected_clients": &u.connections,
	}
	for line := range strings.Lines(info) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), ":")
		value, err := strconv.ParseFloat(text, 64)
		if into := fields[name]; into != nil {
			require.NoError(t, err, line)
			*into = value
		} else if name == "used_cpu_user" || name == "used_cpu_sys" {
			require.NoError(t, err, line)
			u.cpu += value
		}
	}
	u.answer = float64(len(info))
	return u
}

// since is what others have used since an earlier time; memory and connections are those of now.
func (u usage) since(before usage) usage {
	u.cpu -= before.cpu
	u.in -= before.in
	u.out -= before.out + before.answer
	u.commands -= before.commands
	return u
}
