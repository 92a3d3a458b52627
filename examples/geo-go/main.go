// Command geo-go is the Go service of `make demo`: hotel search with an initialisation worth skipping.
//
// The same API as examples/geo.py (see examples/README.md), on net/http. Goroutines, runtime timers and a
// steady allocation rate run beside the requests, so a fork that loses a thread, a timer or a preemption
// signal shows in GET /state. One process, no files written, no dependencies.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

type options struct {
	port    int
	nidx    int
	hotels  int
	mb      int
	seed    int64
	churnKb int
	gcMs    int
}

func parseOptions() (options, error) {
	var o options
	flag.IntVar(&o.port, "port", 8080, "TCP port on 127.0.0.1")
	flag.IntVar(&o.nidx, "nidx", 96, "number of indexes")
	flag.IntVar(&o.hotels, "hotels", 6000, "hotels per index")
	flag.IntVar(&o.mb, "mb", 0, "extra touched memory in MiB")
	flag.Int64Var(&o.seed, "seed", 1, "seed of all generated data")
	flag.IntVar(&o.churnKb, "churn-kb", 16, "garbage made per tick in KiB")
	flag.IntVar(&o.gcMs, "gc-ms", 0, "collect garbage every so many milliseconds (0: when the runtime wants to)")
	flag.Parse()
	if flag.NArg() > 0 || o.nidx < 1 || o.hotels < 1 || o.mb < 0 || o.churnKb < 0 || o.gcMs < 0 {
		return o, errors.New("nidx and hotels start at 1, the other numbers at 0; no further arguments")
	}
	return o, nil
}

func run() error {
	o, err := parseOptions()
	if err != nil {
		return err
	}
	s, err := newService(o)
	if err != nil {
		return err
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	s.startTickers(stop)
	server := &http.Server{
		Addr:              fmt.Sprintf("127.0.0.1:%d", o.port),
		Handler:           s.routes(),
		ReadHeaderTimeout: 10 * time.Second,
	}
	go func() {
		<-stop.Done()
		// An idle client must not keep the service alive.
		ending, done := context.WithTimeout(context.Background(), time.Second)
		defer done()
		if server.Shutdown(ending) != nil {
			_ = server.Close()
		}
	}()
	fmt.Printf("geo-go: ready on %s after %d ms, pid %d\n", server.Addr, s.initMs, os.Getpid())
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		log.Fatalf("geo-go: %v", err)
	}
}
