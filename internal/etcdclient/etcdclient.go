// Package etcdclient makes clients of etcd whose password and certificates may change while they
// run.
package etcdclient

import (
	"context"
	"crypto/tls"
	"net"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// Ask makes clients of cfg ask for the password at each login, and for the TLS configuration at
// each connection. A function that is nil leaves what cfg has.
func Ask(cfg *clientv3.Config, password func() (string, error), secure func() (*tls.Config, error)) {
	cfg.DialOptions = slices.Clone(cfg.DialOptions)
	if password != nil {
		cfg.Password = "asked for" // without one, a client does not log in
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(login(password)))
	}
	if secure != nil {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithTransportCredentials(
			transport{credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12}), secure}))
	}
}

// login puts the password into each login. A client logs in again when its token is refused, which
// a change of the password causes.
func login(password func() (string, error)) grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		if r, ok := request.(*etcdserverpb.AuthenticateRequest); ok {
			text, err := password()
			if err != nil {
				return err
			}
			request = &etcdserverpb.AuthenticateRequest{Name: r.Name, Password: text}
		}
		return invoke(ctx, method, request, reply, conn, opts...)
	}
}

// A transport makes each connection with the TLS configuration of the moment.
type transport struct {
	credentials.TransportCredentials
	config func() (*tls.Config, error)
}

// ClientHandshake implements credentials.TransportCredentials.
func (t transport) ClientHandshake(
	ctx context.Context, authority string, conn net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := t.config()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(cfg).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (t transport) Clone() credentials.TransportCredentials {
	return transport{t.TransportCredentials.Clone(), t.config}
}
