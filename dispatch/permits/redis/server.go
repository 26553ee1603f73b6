package redispermits

import (
	"bufio"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A Server is what one server of the store says of itself.
type Server struct {
	Address    string // host:port
	Version    string
	UsedMemory int64  // bytes
	MaxMemory  int64  // bytes; 0 = unbounded
	Eviction   string // its maxmemory-policy
	AppendOnly bool   // it has an append-only file
}

// Servers asks each server that has permits how it is. It takes the right to INFO.
func (s *Store) Servers(ctx context.Context) ([]Server, error) {
	ctx, done := s.timeout.Bound(ctx)
	defer done()
	var mu sync.Mutex
	var all []Server
	ask := func(ctx context.Context, client *redis.Client) error {
		text, err := client.Info(ctx, "server", "memory", "persistence").Result()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, parseInfo(client.Options().Addr, text))
		return nil
	}
	var err error
	switch client := s.client.(type) {
	case *redis.ClusterClient:
		err = client.ForEachMaster(ctx, ask)
	case *redis.Client:
		err = ask(ctx, client)
	}
	slices.SortFunc(all, func(a, b Server) int { return strings.Compare(a.Address, b.Address) })
	return all, s.wrap("ask for its state", err)
}

// parseInfo reads an answer of INFO.
func parseInfo(address, text string) Server {
	fields := map[string]string{}
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		fields[name] = value
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(fields[name], 10, 64) // 0 if it is missing
		return n
	}
	return Server{
		Address: address, Version: fields["redis_version"], UsedMemory: number("used_memory"),
		MaxMemory: number("maxmemory"), Eviction: fields["maxmemory_policy"],
		AppendOnly: fields["aof_enabled"] == "1",
	}
}
