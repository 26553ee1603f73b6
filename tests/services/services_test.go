package services_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/tests/services"
	"github.com/dispatchthrottle/throttle/tests/throttletest"
)

// ask sends Redis one line and returns the first line of its answer, for which it waits that long.
func ask(addr, line string, wait time.Duration) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, throttletest.Patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", line); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(answer), err
}

func wantAnswer(t *testing.T, addr, line, want string) {
	t.Helper()
	if got, err := ask(addr, line, throttletest.Patience); got != want || err != nil {
		t.Errorf("%s = %q, %v; want %q", line, got, err, want)
	}
}

func TestRedis(t *testing.T) {
	addr, ok := strings.CutPrefix(services.Redis(t), "redis://")
	if !ok {
		t.Errorf("the URL of %s is not redis://", addr)
	}
	wantAnswer(t, addr, "PING", "+PONG")
}

func TestRedisServer(t *testing.T) {
	r := services.RedisServer(t)
	wantAnswer(t, r.Addr, "SET a 1", "+OK")

	r.Freeze()
	if got, err := ask(r.Addr, "PING", 200*time.Millisecond); !os.IsTimeout(err) {
		t.Errorf("PING while frozen = %q, %v; want a time-out", got, err)
	}
	r.Thaw()
	wantAnswer(t, r.Addr, "EXISTS a", ":1")

	for _, end := range []func(){r.Stop, r.Kill, func() { r.Freeze(); r.Stop() }} {
		end()
		if got, err := ask(r.Addr, "PING", throttletest.Patience); err == nil || r.PID() != 0 {
			t.Errorf("PING of a stopped server = %q, pid %d", got, r.PID())
		}
		r.Start()
		wantAnswer(t, r.Addr, "EXISTS a", ":0")
	}
}

// TestOrphan kills a test binary; its redis-server must end.
func TestOrphan(t *testing.T) {
	if os.Getenv("SERVICES_ORPHAN") != "" {
		fmt.Println("addr", services.RedisServer(t).Addr)
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestOrphan$")
	cmd.Env = append(os.Environ(), "SERVICES_ORPHAN=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	if _, err := fmt.Fscanf(out, "addr %s\n", &addr); err != nil {
		t.Error(err)
	}
	wantAnswer(t, addr, "PING", "+PONG")
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // says that it was killed
	require.Eventually(t, func() bool { _, err := ask(addr, "PING", throttletest.Patience); return err != nil },
		throttletest.Patience, 5*time.Millisecond, "redis-server outlives its test")
}

func TestEtcd(t *testing.T) {
	e := services.Etcd(t)
	client := e.Client()
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	var rev int64
	for _, v := range []string{"1", "2", "3"} {
		put, err := client.Put(ctx, "a", v)
		if err != nil {
			t.Fatal(err)
		}
		rev = put.Header.Revision
	}
	e.Compact()
	if w := <-client.Watch(ctx, "a", clientv3.WithRev(rev-1)); !errors.Is(w.Err(), rpctypes.ErrCompacted) {
		t.Errorf("watch from before the compaction: %v, want %v", w.Err(), rpctypes.ErrCompacted)
	}
	e.Stop()
	e.Start()
	got, err := client.Get(ctx, "a")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "3" {
		t.Errorf("after a restart a = %v, %v; want 3", got, err)
	}
}

func TestEtcdURL(t *testing.T) {
	endpoint, prefix, _ := strings.Cut(strings.TrimPrefix(services.EtcdURL(t), "etcd://"), "/")
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Put(t.Context(), prefix+"/a", "1"); err != nil {
		t.Error(err)
	}
}

func TestKafka(t *testing.T) {
	k := services.Kafka(t)
	if again := services.Kafka(t); again.Brokers[0] != k.Brokers[0] {
		t.Errorf("a second broker: %v and %v", k.Brokers, again.Brokers)
	}
	topic := services.Name(t)
	k.CreateTopic(topic, 4)
	w := &kafka.Writer{
		Addr: kafka.TCP(k.Brokers...), Topic: topic, RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond,
	}
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: k.Brokers, Topic: topic, GroupID: topic, MaxWait: 100 * time.Millisecond,
	})
	t.Cleanup(func() {
		if err := errors.Join(w.Close(), r.Close()); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), throttletest.Patience)
	defer cancel()
	if err := w.WriteMessages(ctx, kafka.Message{Value: []byte("hello")}); err != nil {
		t.Fatal(err)
	}
	m, err := r.ReadMessage(ctx)
	if err != nil || string(m.Value) != "hello" {
		t.Errorf("read %q, %v; want hello", m.Value, err)
	}
}

func TestProxy(t *testing.T) {
	p := services.NewProxy(t, services.RedisServer(t).Addr)
	wantAnswer(t, p.Addr, "PING", "+PONG")

	p.Latency(20 * time.Millisecond)
	start := time.Now()
	wantAnswer(t, p.Addr, "PING", "+PONG")
	if took := time.Since(start); took < 40*time.Millisecond {
		t.Errorf("a round trip took %v, want 40ms or more", took)
	}

	p.Restore()
	p.Freeze()
	conn, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(buf); !os.IsTimeout(err) {
		t.Errorf("read while frozen = %q, %v; want a time-out", buf[:n], err)
	}
	p.Restore()
	_ = conn.SetReadDeadline(time.Now().Add(throttletest.Patience))
	if n, err := conn.Read(buf); string(buf[:n]) != "+PONG\r\n" || err != nil {
		t.Errorf("read after the freeze = %q, %v; want the answer that was held", buf[:n], err)
	}

	p.Cut()
	if n, err := conn.Read(buf); err == nil || os.IsTimeout(err) {
		t.Errorf("read from a cut connection = %q, %v; want its end", buf[:n], err)
	}
	if got, err := ask(p.Addr, "PING", throttletest.Patience); err == nil {
		t.Errorf("PING while cut = %q, want an error", got)
	}
	p.Restore()
	wantAnswer(t, p.Addr, "PING", "+PONG")
}

// TestRedisCluster: a slot moves with its keys, and its old owner redirects clients.
func TestRedisCluster(t *testing.T) {
	c := services.RedisCluster(t)
	const key = "{a}:1"
	from := c.Owner(key)
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	wantAnswer(t, from.Addr, "SET "+key+" 1", "+OK")
	c.Migrate(key, to, func() {
		if got, err := ask(from.Addr, "GET "+key, throttletest.Patience); !strings.HasPrefix(got, "-ASK") {
			t.Errorf("GET on its way = %q, %v; want -ASK", got, err)
		}
	})
	if got, err := ask(from.Addr, "GET "+key, throttletest.Patience); !strings.HasPrefix(got, "-MOVED") {
		t.Errorf("GET at the old owner = %q, %v; want -MOVED", got, err)
	}
	if got := c.Do(to, "GET", key); got != "1" || c.Owner(key) != to {
		t.Errorf("GET at the new owner = %v, want 1", got)
	}
}

// TestRedisSentinel: a detached replica becomes the master, without the writes since then.
func TestRedisSentinel(t *testing.T) {
	f := services.RedisSentinel(t, 300*time.Millisecond)
	wantAnswer(t, f.Master.Addr, "SET a 1", "+OK")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		got, err := ask(f.Replica.Addr, "STRLEN a", throttletest.Patience)
		require.NoError(c, err)
		assert.Equal(c, ":1", got, "at the replica")
	}, throttletest.Patience, 5*time.Millisecond)
	f.Detach()
	wantAnswer(t, f.Master.Addr, "SET a 2", "+OK")
	f.Master.Kill()
	f.Elected()
	wantAnswer(t, f.Replica.Addr, "INCR a", ":2")
}

func TestPulsar(t *testing.T) {
	p := services.Pulsar(t)
	resp, err := http.Get(p.Web + "/admin/v2/clusters")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("its clusters: %s", resp.Status)
	}
	if again := services.Pulsar(t); again.URL != p.URL {
		t.Error("the second is another")
	}
}
