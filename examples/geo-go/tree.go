package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand"
	"sort"
)

const earthRadiusKm = 6371.0

// point is a place on the unit sphere: straight-line distance orders points as distance over
// ground does, also across the date line.
type point [3]float64

func toSphere(latitude, longitude float64) point {
	latitude, longitude = latitude*math.Pi/180, longitude*math.Pi/180
	across := math.Cos(latitude)
	return point{across * math.Cos(longitude), across * math.Sin(longitude), math.Sin(latitude)}
}

func (p point) degrees() (latitude, longitude float64) {
	z := math.Max(-1, math.Min(1, p[2]))
	return math.Asin(z) * 180 / math.Pi, math.Atan2(p[1], p[0]) * 180 / math.Pi
}

// hotel is one record of the document that an index is built from.
type hotel struct {
	ID   int     `json:"hotelId"`
	Name string  `json:"name"`
	Lat  float64 `json:"lat"`
	Lon  float64 `json:"lon"`
}

// node is one hotel in a k-d tree; depth picks the splitting axis, x first.
type node struct {
	at          point
	id          int
	name        string
	left, right *node
}

// generateDocument returns the JSON text that such a service would read from its file.
func generateDocument(generator *rand.Rand, count int) ([]byte, error) {
	hotels := make([]hotel, count)
	for i := range hotels {
		hotels[i] = hotel{i, fmt.Sprintf("hotel-%d", i), generator.Float64()*130 - 60, generator.Float64()*360 - 180}
	}
	return json.Marshal(hotels)
}

func readHotels(document []byte) ([]*node, error) {
	var hotels []hotel
	if err := json.Unmarshal(document, &hotels); err != nil {
		return nil, err
	}
	nodes := make([]*node, len(hotels))
	for i, h := range hotels {
		nodes[i] = &node{at: toSphere(h.Lat, h.Lon), id: h.ID, name: h.Name}
	}
	return nodes, nil
}

func buildTree(nodes []*node, axis int) *node {
	if len(nodes) == 0 {
		return nil
	}
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].at[axis] < nodes[j].at[axis] })
	middle := len(nodes) / 2
	following := (axis + 1) % 3
	root := nodes[middle]
	root.left = buildTree(nodes[:middle], following)
	root.right = buildTree(nodes[middle+1:], following)
	return root
}

type found struct {
	squared float64 // squared straight-line distance in earth radii
	node    *node
}

// search collects the nearest hotels, nearest first, at most as many as `best` has room for.
type search struct {
	from point
	best []found
}

func (s *search) visit(n *node, axis int) {
	if n == nil {
		return
	}
	squared := 0.0
	for i := range s.from {
		d := s.from[i] - n.at[i]
		squared += d * d
	}
	s.offer(found{squared, n})
	offset := s.from[axis] - n.at[axis]
	near, far := n.left, n.right
	if offset > 0 {
		near, far = far, near
	}
	following := (axis + 1) % 3
	s.visit(near, following)
	if len(s.best) < cap(s.best) || offset*offset < s.best[len(s.best)-1].squared {
		s.visit(far, following)
	}
}

func (s *search) offer(f found) {
	if len(s.best) == cap(s.best) {
		if f.squared >= s.best[len(s.best)-1].squared {
			return
		}
		s.best = s.best[:len(s.best)-1]
	}
	i := sort.Search(len(s.best), func(i int) bool { return s.best[i].squared > f.squared })
	s.best = append(s.best, found{})
	copy(s.best[i+1:], s.best[i:])
	s.best[i] = f
}

// digestTree continues a CRC-32 over all nodes in depth-first order.
func digestTree(n *node, digest uint32) uint32 {
	if n == nil {
		return digest
	}
	var bytes [32]byte
	for i, coordinate := range n.at {
		binary.LittleEndian.PutUint64(bytes[8*i:], math.Float64bits(coordinate))
	}
	binary.LittleEndian.PutUint64(bytes[24:], uint64(n.id))
	digest = crc32.Update(digest, crc32.IEEETable, bytes[:])
	return digestTree(n.right, digestTree(n.left, digest))
}
