package shapes

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dispatchthrottle/throttle/tests/services"
)

// send sends a command to a Redis or Sentinel as a user.
func send(t *testing.T, addr, user, password string, args ...any) {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, Username: user, Password: password, DisableIdentity: true})
	require.NoError(t, c.Do(t.Context(), args...).Err(), args)
	require.NoError(t, c.Close())
}

// TestSentinelLogin: Sentinels have a user and a password, which are not those of the servers. The
// password changes while a Limiter runs, and is used at a failover.
func TestSentinelLogin(t *testing.T) {
	t.Parallel()
	f := services.RedisSentinel(t, 300*time.Millisecond)
	const watcher, peers = "be+wacht", "unter+sich"
	for _, r := range []*services.RedisProcess{f.Master, f.Replica} {
		send(t, r.Addr, "", "", "ACL", "SETUSER", "throttle", "on", ">"+password, "~*", "&*", "+@all")
	}
	for _, s := range f.Sentinels {
		send(t, s.Addr, "", "", "ACL", "SETUSER", "watcher", "on", ">"+watcher, "resetchannels",
			"&+switch-master", "&+replica-reconf-done", "+sentinel|get-master-addr-by-name",
			"+sentinel|sentinels", "+subscribe", "+ping")
		send(t, s.Addr, "", "", "SENTINEL", "CONFIG", "SET", "sentinel-pass", peers)
	}
	for _, s := range f.Sentinels {
		send(t, s.Addr, "", "", "ACL", "SETUSER", "default", "resetpass", ">"+peers)
	}
	file := secret(t, watcher)
	url := strings.Replace(f.URL, "://", "://throttle:"+password+"@", 1) + "&sentinel-user=watcher&sentinel-password-file="
	refuses(t, strings.Replace(f.URL, "://", "://throttle:"+password+"@", 1), "NOAUTH")
	refuses(t, url+secret(t, "wrong"), "WRONGPASS")
	refuses(t, strings.Replace(url, ":"+password, ":wrong", 1)+file, "WRONGPASS")
	works(t, open(t, url+file))

	store := open(t, url+file)
	works(t, store)
	for _, s := range f.Sentinels {
		send(t, s.Addr, "", peers, "ACL", "SETUSER", "watcher", "resetpass", ">"+rotated)
		send(t, s.Addr, "", peers, "CLIENT", "KILL", "USER", "watcher")
	}
	replace(t, file, rotated)
	send(t, f.Master.Addr, "", "", "CLIENT", "KILL", "USER", "throttle")
	works(t, store)
	works(t, open(t, url+file))
}

// TestSentinelTLS: Sentinels have TLS of their own, or none.
func TestSentinelTLS(t *testing.T) {
	t.Parallel()
	server, client := services.TLS(t)
	stranger, _ := services.TLS(t)
	f := services.RedisSentinelTLS(t, 300*time.Millisecond, server)
	plain := "redis+sentinel://" + f.Sentinels[0].Addr + "," + f.Sentinels[1].Addr + "?master=throttle"
	files := func(prefix, ca string) string {
		return "&" + prefix + "ca=" + ca + "&" + prefix + "cert=" + client.Cert + "&" + prefix + "key=" + client.Key
	}
	works(t, open(t, plain+"&sentinel-tls=false"+files("", client.CA)))
	works(t, open(t, f.URL+files("sentinel-", client.CA)+files("", client.CA)))
	refuses(t, f.URL+files("sentinel-", stranger.CA)+files("", client.CA), "certificate signed by unknown authority")
	refuses(t, f.URL+files("sentinel-", client.CA)+files("", stranger.CA), "certificate signed by unknown authority")
	store := open(t, f.URL+files("sentinel-", client.CA)) // no TLS with the servers
	err := allocate(t, store, allocation("throttle:limit:{a}"))
	assert.ErrorContains(t, err, "the server closed the connection: if it wants TLS")
}
