package hour

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
)

// A network is a bridge, where the services listen, and a network namespace for each consumer,
// which is linked to it.
type network struct {
	t      *testing.T
	id     string
	prefix string // of addresses
}

// The hosts of a network: each kind of service has an address, so that consumers can be cut off
// from one of them.
const (
	brokers  = 1
	permits  = 2
	policies = 3
)

// newNetwork makes a network that ends with the test. It needs iproute2 and root.
func newNetwork(t *testing.T) (*network, error) {
	n := &network{t, fmt.Sprintf("ch%04x", rand.IntN(1<<16)), fmt.Sprintf("10.%d.%d.", 128+rand.IntN(100), rand.IntN(256))}
	t.Cleanup(func() {
		for i := range Consumers {
			_ = ip("netns", "del", n.namespace(i)) // fails if newNetwork has failed
		}
		_ = ip("link", "del", n.id)
	})
	err := ip("link", "add", n.id, "type", "bridge")
	for host, mask := range map[int]string{brokers: "/24", permits: "/32", policies: "/32"} {
		// With /24, what is sent from the second address would come from the first.
		err = errors.Join(err, ip("addr", "add", n.address(host)+mask, "dev", n.id))
	}
	if err = errors.Join(err, ip("link", "set", n.id, "up")); err != nil {
		return nil, err
	}
	for i := range Consumers {
		ns := n.namespace(i)
		for _, command := range []string{
			"netns add " + ns,
			"link add " + n.link(i) + " type veth peer name eth0 netns " + ns,
			"link set " + n.link(i) + " master " + n.id + " up",
			"-n " + ns + " addr add " + n.address(10+i) + "/24 dev eth0",
			"-n " + ns + " link set lo up",
			"-n " + ns + " link set eth0 up",
		} {
			if err := ip(strings.Fields(command)...); err != nil {
				return nil, err
			}
		}
	}
	return n, errors.Join(n.slowDown(0), n.speedUp(0)) // tc may be missing, or its queue in the kernel
}

func (n *network) address(host int) string { return fmt.Sprint(n.prefix, host) }
func (n *network) namespace(i int) string  { return fmt.Sprint(n.id, "-", i) }
func (n *network) link(i int) string       { return fmt.Sprint(n.id, "v", i) }

func (n *network) check(err error) {
	if err != nil {
		n.t.Error(err)
	}
}

// cut takes a consumer's link down.
func (n *network) cut(i int) { n.check(ip("link", "set", n.link(i), "down")) }

// mend ends cut.
func (n *network) mend(i int) { n.check(ip("link", "set", n.link(i), "up")) }

// hide makes a consumer send what is for a host to nobody.
func (n *network) hide(host int) func(i int) {
	return func(i int) {
		n.check(ip("-n", n.namespace(i), "neigh", "replace", n.address(host),
			"lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"))
	}
}

// show ends hide.
func (n *network) show(host int) func(i int) {
	return func(i int) {
		n.check(ip("-n", n.namespace(i), "neigh", "del", n.address(host), "dev", "eth0"))
	}
}

// slow makes a consumer's link slow: what is sent to it waits for up to 400 ms, or is dropped.
func (n *network) slow(i int) { n.check(n.slowDown(i)) }

// fast ends slow.
func (n *network) fast(i int) { n.check(n.speedUp(i)) }

func (n *network) slowDown(i int) error {
	return tc("qdisc", "add", "dev", n.link(i), "root", "tbf", "rate", "64kbit", "burst", "4kb", "latency", "400ms")
}

func (n *network) speedUp(i int) error { return tc("qdisc", "del", "dev", n.link(i), "root") }

func ip(args ...string) error { return command("ip", args...) }
func tc(args ...string) error { return command("tc", args...) }

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
