// Command probe-go: the Go runtime under a fork. Goroutines in channels, timers, locked threads, the network poller,
// garbage collections and preemption signals. Protocol as in probe.h: prints "ready", waits for --go, prints what it
// finds.
package main

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"flag"
	"fmt"
	mathrand "math/rand"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var failures int

func check(held bool, what string) {
	result := "ok"
	if !held {
		result = "FAILED"
		failures++
	}
	fmt.Printf("%s: %s\n", what, result)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe-go:", err)
		os.Exit(2)
	}
}

type state struct {
	ticks, spins, churned atomic.Int64
	inbox, outbox         chan string
	gate                  sync.WaitGroup
	released              atomic.Int64
	table                 map[int][]byte
	random                *mathrand.Rand
	listener              net.Listener
	signals               chan os.Signal
	locked                chan chan int
	socket                string
}

func setUp(directory string) *state {
	s := &state{
		inbox: make(chan string), outbox: make(chan string), locked: make(chan chan int),
		table: map[int][]byte{}, random: mathrand.New(mathrand.NewSource(42)), signals: make(chan os.Signal, 4),
	}
	for i := 0; i < 20000; i++ {
		s.table[i] = []byte(fmt.Sprintf("value %d", i))
	}
	s.random.Int63()
	ticker := time.NewTicker(5 * time.Millisecond)
	go func() {
		for range ticker.C {
			s.ticks.Add(1)
		}
	}()
	// A tight loop: only a preemption signal gets it off its thread.
	go func() {
		for {
			for i := 0; i < 1000000; i++ {
				s.spins.Add(1)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	go s.churn()
	go func() { s.outbox <- "took " + <-s.inbox }()
	s.gate.Add(1)
	for i := 0; i < 100; i++ {
		go func() { s.gate.Wait(); s.released.Add(1) }()
	}
	go s.stayOnOneThread()
	directory, err := os.MkdirTemp(directory, "probe-go-")
	must(err)
	s.socket = filepath.Join(directory, "s")
	s.listener, err = net.Listen("unix", s.socket)
	must(err)
	go s.serve()
	signal.Notify(s.signals, syscall.SIGUSR1)
	time.Sleep(50 * time.Millisecond)
	return s
}

// churn makes garbage, so that collections run before and after the fork.
func (s *state) churn() {
	for {
		blocks := make([][]byte, 64)
		for i := range blocks {
			blocks[i] = make([]byte, 16384)
		}
		s.churned.Add(int64(len(blocks)))
		time.Sleep(time.Millisecond)
	}
}

// stayOnOneThread answers with its thread's id, which must not change.
func (s *state) stayOnOneThread() {
	runtime.LockOSThread()
	tid := syscall.Gettid()
	for answer := range s.locked {
		answer <- syscall.Gettid() - tid
	}
}

func (s *state) serve() {
	for {
		connection, err := s.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer connection.Close()
			line, _ := bufio.NewReader(connection).ReadString('\n')
			fmt.Fprintf(connection, "echo %s", line)
		}()
	}
}

func ask(network, address string) string {
	connection, err := net.Dial(network, address)
	if err != nil {
		return err.Error()
	}
	defer connection.Close()
	fmt.Fprintf(connection, "hello\n")
	line, _ := bufio.NewReader(connection).ReadString('\n')
	return line
}

func (s *state) fromGoOn() {
	ticks, spins, churned := s.ticks.Load(), s.spins.Load(), s.churned.Load()
	started := time.Now()
	time.Sleep(300 * time.Millisecond)
	check(time.Since(started) >= 300*time.Millisecond, "time.Sleep")
	check(s.ticks.Load() > ticks, "ticker goes on")
	check(s.spins.Load() > spins, "tight loop goes on")
	check(s.churned.Load() > churned, "allocation goes on")
	runtime.GC()
	fmt.Printf("table %d %s\n", len(s.table), s.table[19999])
	fmt.Println("random", s.random.Int63(), s.random.Intn(1000))
	s.inbox <- "a message"
	fmt.Println("channel:", <-s.outbox)
	s.gate.Done()
	for deadline := time.Now().Add(10 * time.Second); s.released.Load() < 100 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("goroutines released:", s.released.Load())
	answer := make(chan int)
	s.locked <- answer
	check(<-answer == 0, "goroutine stays on its thread")
	fmt.Print("server: ", ask("unix", s.socket))
	check(syscall.Kill(syscall.Getpid(), syscall.SIGUSR1) == nil && <-s.signals == syscall.SIGUSR1, "signal.Notify")
	one, other := make([]byte, 16), make([]byte, 16)
	_, err1 := rand.Read(one)
	_, err2 := rand.Read(other)
	check(err1 == nil && err2 == nil && string(one) != string(other), "crypto/rand")
	fmt.Printf("hash %x\n", sha256.Sum256(s.table[0]))
	output, err := exec.Command("/bin/echo", "from a child").Output()
	fmt.Printf("subprocess after the fork: %s", output)
	check(err == nil, "subprocess")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	s.listener = listener
	go s.serve()
	fmt.Print("a new listener: ", ask("tcp", listener.Addr().String()))
	check(nilDereference(), "nil dereference recovered")
}

func nilDereference() (recovered bool) {
	defer func() { recovered = recover() != nil }()
	var missing *state
	missing.socket = "never"
	return false
}

func main() {
	goPath := flag.String("go", "/tmp/go", "the trigger")
	readyFile := flag.String("ready-file", os.Getenv("READY_FILE"), "made when ready")
	directory := flag.String("dir", "/tmp", "where files may be made")
	flag.Parse()
	s := setUp(*directory)
	if *readyFile != "" {
		must(os.WriteFile(*readyFile, nil, 0o644))
	}
	fmt.Println("ready")
	for {
		if _, err := os.Stat(*goPath); err == nil {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	s.fromGoOn()
	if failures > 0 {
		fmt.Println("done with failures")
		os.Exit(1)
	}
	fmt.Println("done")
}
