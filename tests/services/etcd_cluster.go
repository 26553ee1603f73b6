package services

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// An EtcdTrio is an etcd of three members, each standing for a data centre.
type EtcdTrio struct {
	Endpoints [3]string // host:port of each member's clients

	t       testing.TB
	configs [3]*embed.Config
	servers [3]*embed.Etcd // nil while stopped

	mu       sync.Mutex // guards the fields below
	names    map[string]int
	isolated int // the member that is cut off from the others; -1 for none
	cut      context.Context
	sever    context.CancelFunc // ends the open connections
}

// EtcdCluster starts three members that end with the test. It ignores the environment.
func EtcdCluster(t testing.TB) *EtcdTrio {
	t.Helper()
	c := &EtcdTrio{t: t, names: map[string]int{}, isolated: -1}
	c.cut, c.sever = context.WithCancel(context.Background())
	var members []string
	for i := range c.configs {
		cfg := embed.NewConfig()
		cfg.Name, cfg.Dir = string(rune('a'+i)), t.TempDir()
		cfg.TickMs, cfg.ElectionMs = 20, 200
		cfg.UnsafeNoFsync = true
		cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		c.Endpoints[i] = hostPort(freePort(t))
		client := url.URL{Scheme: "http", Host: c.Endpoints[i]}
		peer := url.URL{Scheme: "http", Host: hostPort(freePort(t))}
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		cfg.ListenPeerUrls = []url.URL{peer}
		front := httptest.NewServer(c.peerProxy(i, &peer))
		t.Cleanup(func() {
			front.CloseClientConnections()
			front.Close()
		})
		public, _ := url.Parse(front.URL) // always a URL
		cfg.AdvertisePeerUrls = []url.URL{*public}
		members = append(members, cfg.Name+"="+front.URL)
		c.configs[i] = cfg
	}
	var starting sync.WaitGroup
	for i, cfg := range c.configs {
		cfg.InitialCluster = strings.Join(members, ",")
		starting.Go(func() { c.Start(i) })
	}
	starting.Wait()
	t.Cleanup(func() {
		c.Heal()
		c.sever()
		var ending sync.WaitGroup
		for i := range c.servers {
			ending.Go(func() { c.Stop(i) })
		}
		ending.Wait()
	})
	if t.Failed() {
		t.FailNow()
	}
	return c
}

// Start starts a stopped member again, with its data, and returns when it is ready.
func (c *EtcdTrio) Start(member int) {
	server, err := embed.StartEtcd(c.configs[member])
	if err != nil {
		c.t.Errorf("services: start etcd: %v", err)
		return
	}
	c.servers[member] = server
	c.mu.Lock()
	c.names[server.Server.MemberID().String()] = member
	c.mu.Unlock()
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(20 * time.Second):
		c.t.Error("services: etcd is not ready after 20 s")
	}
}

// Stop stops a member, and keeps its data for the next Start. A second call does nothing.
func (c *EtcdTrio) Stop(member int) {
	if server := c.servers[member]; server != nil {
		server.Close()
		c.servers[member] = nil
	}
}

// peerProxy returns a proxy through which the other members reach one; they send their names.
func (c *EtcdTrio) peerProxy(to int, peer *url.URL) http.Handler {
	proxy := httputil.NewSingleHostReverseProxy(peer)
	proxy.FlushInterval = -1 // streams
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {
		panic(http.ErrAbortHandler)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		from, known := c.names[r.Header.Get("X-Server-From")]
		blocked := c.isolated == to || known && c.isolated == from
		cut := c.cut
		c.mu.Unlock()
		if blocked {
			panic(http.ErrAbortHandler)
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(cut, cancel)()
		proxy.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Isolate cuts a member off from the other two, but not from its clients, until Heal.
func (c *EtcdTrio) Isolate(member int) { c.set(member) }

// Heal ends Isolate.
func (c *EtcdTrio) Heal() { c.set(-1) }

func (c *EtcdTrio) set(isolated int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isolated = isolated
	c.sever()
	c.cut, c.sever = context.WithCancel(context.Background())
}
