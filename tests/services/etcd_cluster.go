package services

import (
	"cmp"
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// An EtcdTrio is an etcd of three members, each standing for a data centre.
type EtcdTrio struct {
	Endpoints [3]string // host:port of each member's clients

	t       testing.TB
	members [3]*etcdMember

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
	var peers, public, cluster []string
	for i := range c.members {
		c.Endpoints[i] = hostPort(freePort(t))
		c.members[i] = &etcdMember{
			name: string(rune('a' + i)), endpoint: c.Endpoints[i], dir: t.TempDir(),
			args: []string{"--heartbeat-interval", "20", "--election-timeout", "200"},
		}
		peer := &url.URL{Scheme: "http", Host: hostPort(freePort(t))}
		front := httptest.NewServer(c.peerProxy(i, peer))
		t.Cleanup(func() {
			front.CloseClientConnections()
			front.Close()
		})
		peers, public = append(peers, peer.String()), append(public, front.URL)
		cluster = append(cluster, c.members[i].name+"="+front.URL)
	}
	var starting sync.WaitGroup
	for i, m := range c.members {
		m.join(peers[i], public[i], strings.Join(cluster, ","))
		starting.Go(func() { c.Start(i) })
	}
	starting.Wait()
	t.Cleanup(func() {
		c.Heal()
		c.sever()
		for i := range c.members {
			c.end(i, syscall.SIGKILL)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	return c
}

// Start starts a stopped member again, with its data, and returns when it is ready.
func (c *EtcdTrio) Start(member int) {
	if err := c.start(member); err != nil {
		c.t.Errorf("services: etcd: %v", err)
	}
}

func (c *EtcdTrio) start(member int) error {
	if err := c.members[member].start(); err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints[member : member+1], Logger: zap.NewNop(),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	status, err := client.Status(ctx, c.Endpoints[member])
	if err = cmp.Or(err, client.Close()); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names[strconv.FormatUint(status.Header.MemberId, 16)] = member
	return nil
}

// Stop stops a member, and keeps its data for the next Start. A second call does nothing.
func (c *EtcdTrio) Stop(member int) { c.end(member, syscall.SIGTERM) }

func (c *EtcdTrio) end(member int, sig syscall.Signal) {
	if err := c.members[member].end(sig); err != nil {
		c.t.Errorf("services: etcd: %v", err)
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
