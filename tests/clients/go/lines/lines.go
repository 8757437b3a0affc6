// Package lines is what the Go programs have in common: their command line, and what they print.
//
//	PROGRAM produce --bootstrap HOST:PORT --topic T --codec C --stream S --count N
//	PROGRAM consume --bootstrap HOST:PORT --topic T --group G --count N
//
// Standard output has one fact on a line: "client VERSION", "acked NUMBER PARTITION OFFSET",
// "read STREAM.NUMBER PARTITION OFFSET", and "done" at the end. A client's own error ends the
// program with 1 and is on standard error.
package lines

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
)

// Options of the command line.
type Options struct {
	Produce   bool
	Bootstrap string
	Topic     string
	Codec     string
	Stream    int
	Group     string
	Count     int
}

// Parse reads the command line; what is wrong with it ends the program.
func Parse() Options {
	if len(os.Args) < 2 || (os.Args[1] != "produce" && os.Args[1] != "consume") {
		Fail(fmt.Errorf("say produce or consume"))
	}
	options := Options{Produce: os.Args[1] == "produce"}
	flags := flag.NewFlagSet(os.Args[0], flag.ExitOnError)
	flags.StringVar(&options.Bootstrap, "bootstrap", "", "host and port of the server")
	flags.StringVar(&options.Topic, "topic", "", "topic")
	flags.StringVar(&options.Codec, "codec", "none", "none, gzip, snappy, lz4 or zstd")
	flags.IntVar(&options.Stream, "stream", 0, "number of the producer, in each record")
	flags.StringVar(&options.Group, "group", "", "consumer group")
	flags.IntVar(&options.Count, "count", 0, "number of records")
	_ = flags.Parse(os.Args[2:]) // ExitOnError
	return options
}

// Fail ends the program.
func Fail(err error) {
	Flush()
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

var (
	out  = bufio.NewWriterSize(os.Stdout, 4096)
	lock sync.Mutex
)

// Say prints a line; safe from several goroutines.
func Say(format string, values ...any) {
	lock.Lock()
	defer lock.Unlock()
	fmt.Fprintf(out, format+"\n", values...)
}

// Flush writes out what was said; call it before the program ends.
func Flush() {
	lock.Lock()
	defer lock.Unlock()
	_ = out.Flush()
}

// SayVersion tells which version of a module is built in.
func SayVersion(module string) {
	info, _ := debug.ReadBuildInfo()
	for _, each := range info.Deps {
		if each.Path == module {
			Say("client %s", each.Version)
		}
	}
	Flush()
}

// Value is the content of a record: stream and number, filled up to about 100 bytes.
func Value(stream, number int) []byte {
	head := fmt.Appendf(nil, "%d.%d ", stream, number)
	return append(head, bytes.Repeat([]byte("."), 100-len(head))...)
}

// Identity is the stream and number of a record's content.
func Identity(value []byte) []byte {
	head, _, _ := bytes.Cut(value, []byte(" "))
	return head
}
