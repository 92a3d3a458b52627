package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	pageBytes     = 4096
	mib           = 1 << 20
	valuesMax     = 1024
	valueBytesMax = 256
	neighboursMax = 50
)

var tickPeriods = []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond}

// service is everything that a fork must carry over.
type service struct {
	options  options
	started  time.Time
	initMs   int64
	trees    []*node
	ballast  []byte
	digest   string
	requests atomic.Int64
	ticks    atomic.Int64
	garbage  atomic.Pointer[[]byte]

	writing sync.Mutex // guards values and writes
	values  map[string]string
	writes  int64
}

func newService(o options) (*service, error) {
	s := &service{options: o, started: time.Now(), values: map[string]string{}}
	generator := rand.New(rand.NewSource(o.seed))
	for i := 0; i < o.nidx; i++ {
		document, err := generateDocument(generator, o.hotels)
		if err != nil {
			return nil, err
		}
		nodes, err := readHotels(document)
		if err != nil {
			return nil, err
		}
		s.trees = append(s.trees, buildTree(nodes, 0))
	}
	s.ballast = allocateBallast(o.mb, o.seed)
	s.digest = s.computeDigest()
	s.initMs = time.Since(s.started).Milliseconds()
	return s, nil
}

// allocateBallast returns touched memory in which each page starts with its own number, so no two are equal.
func allocateBallast(mb int, seed int64) []byte {
	block := make([]byte, mib)
	rand.New(rand.NewSource(seed + 1)).Read(block)
	ballast := make([]byte, mb*mib)
	for start := 0; start < len(ballast); start += mib {
		copy(ballast[start:], block)
	}
	for page := 0; page < len(ballast); page += pageBytes {
		binary.LittleEndian.PutUint64(ballast[page:], uint64(page))
	}
	return ballast
}

func (s *service) computeDigest() string {
	digest := crc32.ChecksumIEEE(s.ballast)
	for _, tree := range s.trees {
		digest = digestTree(tree, digest)
	}
	return fmt.Sprintf("%08x", digest)
}

func (s *service) startTickers(stop context.Context) {
	for _, period := range tickPeriods {
		go func(period time.Duration) {
			ticker := time.NewTicker(period)
			defer ticker.Stop()
			for {
				select {
				case <-stop.Done():
					return
				case <-ticker.C:
					s.ticks.Add(1)
					garbage := make([]byte, s.options.churnKb*1024)
					s.garbage.Store(&garbage)
				}
			}
		}(period)
	}
	if s.options.gcMs > 0 {
		go collectEvery(stop, time.Duration(s.options.gcMs)*time.Millisecond)
	}
}

func collectEvery(stop context.Context, period time.Duration) {
	for stop.Err() == nil {
		time.Sleep(period)
		runtime.GC()
	}
}

func (s *service) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/nearby", s.route(http.MethodGet, s.nearby))
	mux.HandleFunc("/state", s.route(http.MethodGet, s.state))
	mux.HandleFunc("/verify", s.route(http.MethodGet, s.verify))
	mux.HandleFunc("/health", s.route(http.MethodGet, func(url.Values) (any, error) { return map[string]bool{"ok": true}, nil }))
	mux.HandleFunc("/write", s.route(http.MethodPost, s.write))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		s.requests.Add(1)
		answer(w, http.StatusNotFound, map[string]string{"error": "no such path"})
	})
	return mux
}

func (s *service) route(method string, handle func(url.Values) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		if r.Method != method {
			answer(w, http.StatusMethodNotAllowed, map[string]string{"error": "use " + method})
			return
		}
		value, err := handle(r.URL.Query())
		if err != nil {
			answer(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
			return
		}
		answer(w, http.StatusOK, value)
	}
}

func answer(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":"unencodable answer"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	// A client that went away has no use for an error.
	_, _ = w.Write(body)
}

func (s *service) nearby(query url.Values) (any, error) {
	latitude, err1 := numberOf(query, "lat", -90, 90, math.NaN())
	longitude, err2 := numberOf(query, "lon", -180, 180, math.NaN())
	index, err3 := numberOf(query, "index", 0, float64(len(s.trees)-1), 0)
	count, err4 := numberOf(query, "count", 1, neighboursMax, 5)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return nil, err
		}
	}
	nearest := search{from: toSphere(latitude, longitude), best: make([]found, 0, int(count))}
	nearest.visit(s.trees[int(index)], 0)
	type answered struct {
		ID         string  `json:"id"`
		Lat        float64 `json:"lat"`
		Lon        float64 `json:"lon"`
		DistanceKm float64 `json:"distance_km"`
	}
	hotels := make([]answered, len(nearest.best))
	for i, f := range nearest.best {
		lat, lon := f.node.at.degrees()
		hotels[i] = answered{f.node.name, lat, lon, 2 * earthRadiusKm * math.Asin(math.Min(1, math.Sqrt(f.squared)/2))}
	}
	return map[string]any{"index": int(index), "hotels": hotels}, nil
}

// numberOf reads a query parameter; a default of NaN means that it must be given.
func numberOf(query url.Values, name string, least, most, byDefault float64) (float64, error) {
	if !query.Has(name) && !math.IsNaN(byDefault) {
		return byDefault, nil
	}
	value, err := strconv.ParseFloat(query.Get(name), 64)
	if err != nil || !(least <= value && value <= most) {
		return 0, fmt.Errorf("%s: a number from %v to %v", name, least, most)
	}
	return value, nil
}

func (s *service) write(query url.Values) (any, error) {
	key, value := query.Get("key"), query.Get("value")
	if key == "" || len(key) > valueBytesMax || len(value) > valueBytesMax {
		return nil, fmt.Errorf("key and value: 1 to %d characters", valueBytesMax)
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if _, known := s.values[key]; !known && len(s.values) >= valuesMax {
		return nil, fmt.Errorf("more than %d keys", valuesMax)
	}
	s.values[key] = value
	s.writes++
	return map[string]any{"writes": s.writes, "key": key, "value": value}, nil
}

func (s *service) state(url.Values) (any, error) {
	threads, err := threadCount()
	if err != nil {
		return nil, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	values := make(map[string]string, len(s.values))
	for key, value := range s.values {
		values[key] = value
	}
	return map[string]any{
		"service":    "geo-go",
		"pid":        os.Getpid(),
		"threads":    threads,
		"goroutines": runtime.NumGoroutine(),
		"ticks":      s.ticks.Load(),
		"requests":   s.requests.Load(),
		"writes":     s.writes,
		"values":     values,
		"hostname":   hostname,
		"uptime_ms":  time.Since(s.started).Milliseconds(),
		"init_ms":    s.initMs,
		"seed":       s.options.seed,
		"digest":     s.digest,
	}, nil
}

// threadCount is the kernel's count, not the runtime's: a thread that a fork lost is missing here.
func threadCount() (int, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, after, _ := bytes.Cut(status, []byte("\nThreads:\t"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	return strconv.Atoi(string(line))
}

func (s *service) verify(url.Values) (any, error) {
	digest := s.computeDigest()
	return map[string]any{"intact": digest == s.digest, "digest": digest}, nil
}
