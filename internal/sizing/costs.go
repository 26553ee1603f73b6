package sizing

// The costs were measured by make size, with Redis 7.0.15 and Go 1.26 on two cores of
// a virtual machine, on which all ran together. Bytes depend on the lengths of names: here those of
// topics have 44, of subscriptions 8 and of replicas 14 bytes.

// Bytes on the network.
const (
	requestIn  = 415 // of one allocation, and of its answer
	requestOut = 136

	// Of a heartbeat or a draw, without the records: one is read, and two are sent to replace it.
	recordIn     = 400
	recordOut    = 80
	splitRecord  = 40
	splitMember  = 120 // a member's part
	groupsRecord = 205
	groupsMember = 54

	statusIn    = 464 // of a status record, without its limits, and of its answer
	statusOut   = 4
	statusBytes = 378 // of one limit in it
)

// Bytes in the memory of Redis, and of a replica.
const (
	redisBytes      = 350_000 // scripts, and a connection without load
	connectionBytes = 26_000  // of a replica's connections
	statusStored    = 650     // of one limit in a status record, with its copies in buffers
	limitBytes      = 400     // a limit's schedule and one subscription

	replicaBytes  = 120_000 // of a Limiter with its connections
	consumerBytes = 5800    // of a subscription of a limit

	// More with sharing.mode split and groups: another connection, and records.
	heartbeatBytes = 50_000
	drawBytes      = 110_000
)

// Commands of Redis.
const publishCommands = 7

// conflictSeconds is how long the record of a limit takes to be read and replaced: another replica
// that does so meanwhile makes it start again.
const conflictSeconds = 0.0006

// callSeconds is what each request adds to the time that a call of many requests takes.
const callSeconds = 20e-6

// Processor time, in seconds.
const (
	redisCPU    = 0.005  // of an idle Redis, each second
	pipelineCPU = 50e-6  // of Redis, for each that it reads and answers
	requestCPU  = 6e-6   // of Redis, for each request in it
	publishCPU  = 50e-6  // of Redis, for each status record
	replicaCPU  = 0.0021 // of a Limiter, each second: its status
	wakeCPU     = 100e-6 // of a Limiter, each time that its loop wakes, with the request it sends
	stepCPU     = 4e-6   // of a Limiter, for each limit that the loop then looks at
	permitCPU   = 0.3e-6 // of a Limiter, for each permit
)
