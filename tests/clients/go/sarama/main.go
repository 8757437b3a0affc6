// A producer and a group consumer with sarama; package lines says how it is called.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"pidlease/tests/clients/lines"
)

func main() {
	options := lines.Parse()
	lines.SayVersion("github.com/IBM/sarama")
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

// patient is a configuration that outlasts a restart of the server: the retries that it comes
// with end after 0.3 s, and then records fail.
func patient() (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.Metadata.Retry.Max = 1000
	// It waits here itself, and says that it did not: of several goroutines that look for a leader
	// sarama lets those fail whose wait was overtaken by another one's success, and their records.
	config.Metadata.Retry.BackoffFunc = func(int, int) time.Duration {
		time.Sleep(100 * time.Millisecond)
		return 0
	}
	config.Producer.Retry.Max = 1000
	config.Consumer.Group.Rebalance.Retry.Max = 1000
	return config, logIn(config)
}

// logIn adds the login that the variables name.
func logIn(config *sarama.Config) error {
	login, err := lines.ReadLogin()
	if err != nil || login == nil {
		return err
	}
	config.Net.TLS.Enable, config.Net.TLS.Config = true, login.TLS
	if login.Mechanism == "" {
		return nil
	}
	config.Net.SASL.Enable = true
	config.Net.SASL.Mechanism = sarama.SASLMechanism(login.Mechanism)
	config.Net.SASL.User, config.Net.SASL.Password = login.User, login.Password
	config.Net.SASL.TokenProvider = token(login.Token)
	hash := scram.SHA256
	if login.Mechanism == sarama.SASLTypeSCRAMSHA512 {
		hash = scram.SHA512
	}
	config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
		return &scramClient{hash: hash}
	}
	return nil
}

type token string

func (t token) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(t)}, nil
}

// scramClient is what sarama leaves to its users.
type scramClient struct {
	hash         scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

func (c *scramClient) Begin(user, password, authzID string) error {
	client, err := c.hash.NewClient(user, password, authzID)
	if err != nil {
		return err
	}
	c.conversation = client.NewConversation()
	return nil
}

func (c *scramClient) Step(challenge string) (string, error) { return c.conversation.Step(challenge) }
func (c *scramClient) Done() bool                            { return c.conversation.Done() }

// produce asks for what sarama's idempotence asks for: acks of all, one request at a time.
func produce(options lines.Options) error {
	config, err := patient()
	if err != nil {
		return err
	}
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1
	config.Producer.Return.Successes = true
	config.Producer.Flush.MaxMessages = 100 // many batches on their way when the server dies
	if err := config.Producer.Compression.UnmarshalText([]byte(options.Codec)); err != nil {
		return err
	}
	producer, err := sarama.NewAsyncProducer([]string{options.Bootstrap}, config)
	if err != nil {
		return err
	}
	go func() {
		for number := range options.Count {
			producer.Input() <- &sarama.ProducerMessage{
				Topic:    options.Topic,
				Value:    sarama.ByteEncoder(lines.Value(options.Stream, number)),
				Metadata: number,
			}
		}
	}()
	for range options.Count {
		select {
		case sent := <-producer.Successes():
			lines.Say("acked %d %d %d", sent.Metadata, sent.Partition, sent.Offset)
		case failed := <-producer.Errors():
			return fmt.Errorf("record %d: %w", failed.Msg.Metadata, failed.Err)
		}
	}
	return producer.Close()
}

// reader prints what it gets, and ends the session when that was enough.
type reader struct {
	left chan struct{} // one for each record that is still to be read
	end  context.CancelFunc
}

func (*reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case record, open := <-claim.Messages():
			if !open {
				return nil
			}
			lines.Say("read %s %d %d", lines.Identity(record.Value), record.Partition, record.Offset)
			session.MarkMessage(record, "")
			<-r.left
			if len(r.left) == 0 {
				r.end()
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func consume(options lines.Options) error {
	config, err := patient()
	if err != nil {
		return err
	}
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Return.Errors = true
	config.Consumer.Group.Session.Timeout = 30 * time.Second
	group, err := sarama.NewConsumerGroup([]string{options.Bootstrap}, options.Group, config)
	if err != nil {
		return err
	}
	go func() {
		for err := range group.Errors() {
			lines.Fail(err)
		}
	}()
	left := make(chan struct{}, options.Count)
	for range options.Count {
		left <- struct{}{}
	}
	running, end := context.WithCancel(context.Background())
	defer end()
	for running.Err() == nil {
		err := group.Consume(running, []string{options.Topic}, &reader{left, end})
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return group.Close() // commits what was marked
}
