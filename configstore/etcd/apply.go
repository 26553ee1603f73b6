package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/dispatchthrottle/throttle/configstore"
	"github.com/dispatchthrottle/throttle/internal/role"
	"github.com/dispatchthrottle/throttle/policy"
)

// maxRounds is how often an Apply begins again for who writes past the tools again and again. It
// then makes its changes over what was written, which the history may not have.
const maxRounds = 10

// Apply implements configstore.Store.
func (s *Store) Apply(ctx context.Context, c configstore.Commit) (int64, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := s.bind(ctx)
	defer cancel()
	for round := 0; ; round++ {
		// The marker must still be where it was, so that the changes were checked against what they
		// change.
		at, err := s.list(ctx, !c.WithoutHistory)
		if role.DeniedByEtcd(err) && !c.WithoutHistory {
			return 0, s.deniedHistory(ctx, client)
		}
		if err != nil {
			return 0, err
		}
		if c.IfRevision != 0 && at.Applied > c.IfRevision {
			return 0, &configstore.ConflictError{Have: at.Applied, Want: c.IfRevision}
		}
		if err := c.Check(at.Entries); err != nil {
			return 0, err
		}
		now := time.Now()
		marker, err := at.Marker.Applied(at.Entries, c.Changes, now)
		if err != nil {
			return 0, err
		}
		var records []clientv3.Op
		if !c.WithoutHistory {
			err := at.headErr
			changed := false
			if err == nil && round < maxRounds {
				changed, err = s.recordFound(ctx, client, at, now)
			}
			if changed {
				continue
			}
			if err == nil {
				records, err = s.recordOps(ctx, client, at, round < maxRounds, c, now)
			}
			if errors.Is(err, errAgain) {
				continue
			}
			if err != nil {
				return 0, &configstore.HistoryError{Err: err}
			}
		}
		ops, leases, err := s.ops(ctx, client, c.Changes, now)
		if err == nil {
			var revision int64
			as := []clientv3.Cmp{s.applied(at.applied)}
			if round < maxRounds {
				as = append(as, s.unchanged(c.Changes, at.revision)...)
			}
			revision, err = s.mark(ctx, client, marker, as, append(records, nest(ops)...)...)
			if revision > 0 {
				return revision * steps, nil
			}
		}
		for _, id := range leases {
			_, _ = client.Revoke(ctx, id) // if that fails, it expires with nothing attached
		}
		if role.DeniedByEtcd(err) && !c.WithoutHistory {
			return 0, s.deniedHistory(ctx, client)
		}
		if errors.Is(err, rpctypes.ErrKeyNotFound) {
			continue // the record that was put ahead has expired, or was deleted
		}
		if err != nil {
			return 0, s.wrap("apply", err)
		}
	}
}

// deniedHistory returns why etcd has denied a change with its record: for want of rights for the
// history, if the user may write policies.
func (s *Store) deniedHistory(ctx context.Context, client *clientv3.Client) error {
	key := s.prefix + markerPart
	_, err := client.Txn(ctx). // changes nothing: etcd checks the rights for both branches
					If(clientv3.Compare(clientv3.ModRevision(key), "<", 0)).
					Then(clientv3.OpPut(key, "")).
					Commit()
	if err != nil {
		return s.wrap("apply", err)
	}
	return &configstore.HistoryError{Err: s.wrap("apply", rpctypes.ErrPermissionDenied)}
}

// applied is the condition that the last Apply was at a revision of etcd's.
func (s *Store) applied(revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(s.prefix+markerPart), "=", revision)
}

// unchanged are the conditions that nobody has written, past the tools, what changes concern since
// a revision of etcd's: the history would not have it. Of many changes, all entries are compared.
func (s *Store) unchanged(changes []configstore.Change, revision int64) (all []clientv3.Cmp) {
	const each = 20
	if len(changes) > each {
		return []clientv3.Cmp{
			clientv3.Compare(clientv3.ModRevision(s.prefix+"/"), "<", revision+1).WithPrefix(),
		}
	}
	for _, c := range changes {
		all = append(all, clientv3.Compare(clientv3.ModRevision(s.key(c.Key)), "<", revision+1))
	}
	return all
}

// mark writes the marker, and makes the operations with it, on some conditions. It returns the new
// revision; 0 if they do not hold.
func (s *Store) mark(
	ctx context.Context, client *clientv3.Client, m configstore.Marker, as []clientv3.Cmp,
	ops ...clientv3.Op,
) (revision int64, err error) {
	text, err := json.Marshal(m)
	if err != nil {
		return 0, err
	}
	resp, err := client.Txn(ctx).
		If(as...).
		Then(append(ops, clientv3.OpPut(s.prefix+markerPart, string(text)))...).
		Commit()
	if err != nil || !resp.Succeeded {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// begin writes the marker of a store that was empty, unless another process has written one.
func (s *Store) begin(ctx context.Context) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := s.bind(ctx)
	defer cancel()
	_, err = s.mark(ctx, client, configstore.Created(time.Now()), []clientv3.Cmp{s.applied(0)})
	if err != nil {
		return s.wrap("create", err)
	}
	return nil
}

// Adopt implements configstore.Store.
func (s *Store) Adopt(
	ctx context.Context, a configstore.Adoption,
) (configstore.Marker, error) {
	client, err := s.connect(ctx)
	if err != nil {
		return configstore.Marker{}, err
	}
	ctx, cancel := s.bind(ctx)
	defer cancel()
	for {
		at, err := s.list(ctx, false)
		if err != nil {
			return configstore.Marker{}, err
		}
		m, err := at.Marker.Adopted(a, at.Entries, time.Now())
		if err != nil {
			return configstore.Marker{}, err
		}
		switch revision, err := s.mark(ctx, client, m, []clientv3.Cmp{s.applied(at.applied)}); {
		case err != nil:
			return configstore.Marker{}, s.wrap("adopt", err)
		case revision > 0:
			return m, nil
		}
	}
}

// ops returns the operations of the changes made at now, and the leases that were granted for them.
func (s *Store) ops(
	ctx context.Context, client *clientv3.Client, changes []configstore.Change, now time.Time,
) (ops []clientv3.Op, leases []clientv3.LeaseID, err error) {
	byTTL := make(map[int64]clientv3.LeaseID)
	for _, c := range changes {
		if c.Deletes() {
			ops = append(ops, clientv3.OpDelete(s.key(c.Key)))
			continue
		}
		value, err := policy.Marshal(c.Settings)
		if err != nil {
			return nil, leases, err
		}
		if c.Field == "" {
			ops = append(ops, clientv3.OpPut(s.key(c.Key), string(value)))
			continue
		}
		seconds := int64(math.Ceil(c.TTL.Seconds())) // the unit of a lease
		id, ok := byTTL[seconds]
		if !ok {
			lease, err := client.Grant(ctx, seconds)
			if err != nil {
				return nil, leases, err
			}
			id = lease.ID
			byTTL[seconds] = id
			leases = append(leases, id)
		}
		// The entry expires before its lease.
		value, err = json.Marshal(temporaryJSON{Expires: c.Entry(now, 0).Expires, Settings: value})
		if err != nil {
			return nil, leases, err
		}
		ops = append(ops, clientv3.OpPut(s.key(c.Key), string(value), clientv3.WithLease(id)))
	}
	return ops, leases, nil
}

// nest puts operations into nested transactions: etcd allows 128 operations along each branch of
// the tree, and three levels of 40 hold 64,000.
func nest(ops []clientv3.Op) []clientv3.Op {
	const width = 40
	for len(ops) > width {
		var outer []clientv3.Op
		for chunk := range slices.Chunk(ops, width) {
			outer = append(outer, clientv3.OpTxn(nil, chunk, nil))
		}
		ops = outer
	}
	return ops
}
