// Package numaflowthrottle applies the limits of a dispatch.Limiter to user-defined vertices of
// Numaflow that are written with numaflow-go. Each wrapper is one line around the user's code:
//
//	src, err := numaflowthrottle.Source(mySource, lim)
//	err = sourcer.NewServer(src).Start(ctx)
//	err = errors.Join(err, lim.Close()) // returns allocated permits; log.Fatal before it would not
//
// The topic is numaflow://namespace/pipeline/vertex, by Numaflow's environment. For a MonoVertex,
// whose containers all have one name, it is numaflow://namespace/monovertex/monovertex: wrap one
// part of a vertex only, or each message is charged twice.
//
// While nothing is limited, a wrapper passes everything to the user's code: one call for a batch,
// and one channel for the messages of a source, a sink or a reducer. A limit that is set later
// applies from the next message on; for a source, a sink or a batch map from the next batch on.
//
// If the Limiter is closed before the server has ended, a source reads nothing, and what comes to
// a sink or a map waits until its stream ends.
package numaflowthrottle
