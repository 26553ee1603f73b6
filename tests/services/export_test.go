package services

// PIDs returns the process ids of the services that last as long as the test binary.
func PIDs() (ids []int) {
	for _, p := range []*process{kafkaOnce.process, pulsarOnce.process} {
		if p != nil {
			ids = append(ids, p.pid)
		}
	}
	return ids
}
