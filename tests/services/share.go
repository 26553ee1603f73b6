package services

import (
	"errors"
	"os"
	"sync"
)

// Share returns the environment variables of a Kafka and a Pulsar for test processes that this
// process starts; see [Kafka] and [Pulsar]. It starts those that the environment does not have;
// they end with this process.
func Share() (env []string, err error) {
	var starting sync.WaitGroup
	var kafkaErr, pulsarErr error
	kafka, pulsar := os.Getenv(kafkaEnv), os.Getenv(pulsarEnv)
	if kafka == "" {
		starting.Go(func() { kafka, kafkaErr = startKafkaOnce() })
	}
	if pulsar == "" {
		starting.Go(func() {
			var broker *PulsarBroker
			if broker, pulsarErr = startPulsarOnce(); pulsarErr == nil {
				pulsar = broker.URL + "," + broker.Web
			}
		})
	}
	starting.Wait()
	return []string{kafkaEnv + "=" + kafka, pulsarEnv + "=" + pulsar}, errors.Join(kafkaErr, pulsarErr)
}
