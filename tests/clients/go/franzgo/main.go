// A producer and a group consumer with franz-go; package lines says how it is called.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"pidlease/tests/clients/lines"
)

func main() {
	options := lines.Parse()
	lines.SayVersion("github.com/twmb/franz-go")
	run := consume
	if options.Produce {
		run = produce
	}
	if err := run(options); err != nil {
		lines.Fail(err)
	}
	lines.Say("done")
	lines.Flush()
}

// newClient adds the login that the variables name.
func newClient(options ...kgo.Opt) (*kgo.Client, error) {
	login, err := lines.ReadLogin()
	if err != nil {
		return nil, err
	}
	if login == nil {
		return kgo.NewClient(options...)
	}
	options = append(options, kgo.DialTLSConfig(login.TLS))
	user := scram.Auth{User: login.User, Pass: login.Password}
	switch login.Mechanism {
	case "":
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: login.User, Pass: login.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(user.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(user.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: login.Token}.AsMechanism()))
	default:
		return nil, fmt.Errorf("no mechanism %q", login.Mechanism)
	}
	return kgo.NewClient(options...)
}

func codec(name string) (kgo.CompressionCodec, error) {
	switch name {
	case "none":
		return kgo.NoCompression(), nil
	case "gzip":
		return kgo.GzipCompression(), nil
	case "snappy":
		return kgo.SnappyCompression(), nil
	case "lz4":
		return kgo.Lz4Compression(), nil
	case "zstd":
		return kgo.ZstdCompression(), nil
	}
	return kgo.NoCompression(), fmt.Errorf("no codec %q", name)
}

// produce leaves everything as it comes (idempotent, acks=all, any number of retries), but for
// smaller batches, many of which are to be on their way when the server dies, and shorter waits.
func produce(options lines.Options) error {
	compression, err := codec(options.Codec)
	if err != nil {
		return err
	}
	client, err := newClient(
		kgo.SeedBrokers(options.Bootstrap),
		kgo.DefaultProduceTopic(options.Topic),
		kgo.ProducerBatchCompression(compression),
		kgo.ProducerBatchMaxBytes(10_000),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
		kgo.MetadataMinAge(100*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	failed := make(chan error, 1)
	for number := range options.Count {
		record := kgo.SliceRecord(lines.Value(options.Stream, number))
		client.Produce(context.Background(), record, func(record *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- fmt.Errorf("record %d: %w", number, err):
				default:
				}
				return
			}
			lines.Say("acked %d %d %d", number, record.Partition, record.Offset)
		})
	}
	if err := client.Flush(context.Background()); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func consume(options lines.Options) error {
	client, err := newClient(
		kgo.SeedBrokers(options.Bootstrap),
		kgo.ConsumerGroup(options.Group),
		kgo.ConsumeTopics(options.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	for count := 0; count < options.Count; {
		fetches := client.PollFetches(context.Background())
		if errors := fetches.Errors(); len(errors) > 0 {
			return fmt.Errorf("%s-%d: %w", errors[0].Topic, errors[0].Partition, errors[0].Err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			lines.Say("read %s %d %d", lines.Identity(record.Value), record.Partition, record.Offset)
			count++
		})
	}
	return client.CommitUncommittedOffsets(context.Background())
}
