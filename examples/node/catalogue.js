'use strict';
// Hotel indexes: the state that is worth not building again. Each index is parsed from its own JSON text,
// which is kept and can be parsed again, and bucketed into a grid over the globe.

const crypto = require('node:crypto');

const EARTH_RADIUS_KM = 6371;
const CELL_DEGREES = 4;
const ROWS = 180 / CELL_DEGREES;
const COLUMNS = 360 / CELL_DEGREES;

/** Mulberry32: a seeded generator, since Math.random() cannot be seeded. */
function generatorFrom(seed) {
  let state = seed >>> 0;
  return (least, most) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return least + (((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296) * (most - least);
  };
}

function generateDocument(uniform, count) {
  const hotels = [];
  for (let number = 0; number < count; number += 1) {
    const rooms = [1, 2, 3].map((beds) => ({ beds, price: Math.round(uniform(40, 400)) }));
    hotels.push({ hotelId: number, name: `hotel-${number}`, lat: uniform(-60, 70), lon: uniform(-180, 180), rooms });
  }
  return JSON.stringify(hotels);
}

function radians(degrees) {
  return (degrees * Math.PI) / 180;
}

/** Great-circle distance by the haversine formula. */
function distanceKm(lat1, lon1, lat2, lon2) {
  const north = Math.sin(radians(lat2 - lat1) / 2);
  const east = Math.sin(radians(lon2 - lon1) / 2);
  const chord = north * north + Math.cos(radians(lat1)) * Math.cos(radians(lat2)) * east * east;
  return 2 * EARTH_RADIUS_KM * Math.asin(Math.min(1, Math.sqrt(chord)));
}

const rowOf = (lat) => Math.min(ROWS - 1, Math.floor((lat + 90) / CELL_DEGREES));
const columnOf = (lon) => Math.min(COLUMNS - 1, Math.floor((lon + 180) / CELL_DEGREES));

class Index {
  constructor(text) {
    this.text = text;
    this.parse();
  }

  /** Reads the text (again): all objects of the index are new afterwards. */
  parse() {
    this.hotels = JSON.parse(this.text);
    this.cells = Array.from({ length: ROWS * COLUMNS }, () => []);
    for (const hotel of this.hotels) {
      this.cells[rowOf(hotel.lat) * COLUMNS + columnOf(hotel.lon)].push(hotel);
    }
  }

  /** The hotels in cells at most `reach` rows and columns away. */
  around(lat, lon, reach) {
    const found = [];
    const middle = columnOf(lon);
    const columns = Math.min(COLUMNS, 2 * reach + 1);
    for (let row = Math.max(0, rowOf(lat) - reach); row <= Math.min(ROWS - 1, rowOf(lat) + reach); row += 1) {
      for (let step = 0; step < columns; step += 1) {
        const column = (middle - reach + step + 2 * COLUMNS) % COLUMNS;
        found.push(...this.cells[row * COLUMNS + column]);
      }
    }
    return found;
  }

  /** The nearest hotels of the neighbourhood, nearest first; it grows until it holds enough of them. */
  nearest(lat, lon, count) {
    let reach = 1;
    let candidates = this.around(lat, lon, reach);
    while (candidates.length < count && reach < COLUMNS / 2) {
      reach *= 2;
      candidates = this.around(lat, lon, reach);
    }
    return candidates
      .map(({ name, lat: hotelLat, lon: hotelLon }) => ({
        id: name,
        lat: hotelLat,
        lon: hotelLon,
        distance_km: distanceKm(lat, lon, hotelLat, hotelLon),
      }))
      .sort((one, other) => one.distance_km - other.distance_km)
      .slice(0, count);
  }
}

function buildIndexes(seed, nidx, hotels) {
  const uniform = generatorFrom(seed);
  return Array.from({ length: nidx }, () => new Index(generateDocument(uniform, hotels)));
}

/** A digest of all parsed hotels and the ballast: tells whether the memory is intact. */
function digestOf(indexes, ballast) {
  const hash = crypto.createHash('sha256').update(ballast);
  for (const index of indexes) {
    hash.update(JSON.stringify(index.hotels));
  }
  return hash.digest('hex').slice(0, 8);
}

module.exports = { buildIndexes, digestOf, generatorFrom };
