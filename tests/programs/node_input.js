// node_input.js: work for node whose results do not depend on time or on the order of threads.
//
// Who may call it: node.sh, as `node node_input.js SCALE PORT`; a worker of itself.
//
// SPDX-License-Identifier: Apache-2.0
'use strict';
const crypto = require('crypto');
const http = require('http');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const zlib = require('zlib');

const sha = (data) => crypto.createHash('sha256').update(data).digest('hex').slice(0, 16);

function numbers(seed) {
    let state = seed;
    return (below) => {
        state = (Math.imul(state, 1103515245) + 12345) >>> 0;
        return (state >>> 8) % below;
    };
}

function documentOf(random, depth) {
    if (depth === 0) return random(2) ? random(100000) : 'text '.repeat(random(8)) + random(1000);
    if (random(3) === 0) return Array.from({ length: random(6) }, () => documentOf(random, depth - 1));
    const object = {};
    for (let i = random(6); i > 0; i--) object['key' + random(500)] = documentOf(random, depth - 1);
    return object;
}

function json(scale, seed) {
    const random = numbers(seed);
    const hash = crypto.createHash('sha256');
    for (let i = 0; i < 400 * scale; i++) {
        const text = JSON.stringify(documentOf(random, 6));
        hash.update(JSON.stringify(JSON.parse(text)));
    }
    return hash.digest('hex').slice(0, 16);
}

// Buffers of mixed sizes, most of them above the pool of small ones, held for a while.
function buffers(scale, seed) {
    const random = numbers(seed);
    const held = new Array(300).fill(Buffer.alloc(0));
    let sum = 0;
    for (let i = 0; i < 6000 * scale; i++) {
        const size = random(20) === 0 ? random(400000) : random(9000);
        const buffer = Buffer.alloc(size, i & 255);
        const at = random(held.length);
        sum = (sum + held[at].length + (held[at][0] || 0)) % 1000000007;
        held[at] = random(3) ? buffer : Buffer.concat([buffer, held[random(held.length)].subarray(0, 100)]);
    }
    return `${sum} ${sha(Buffer.concat(held))}`;
}

async function compress(scale, seed) {
    const random = numbers(seed);
    const jobs = [];
    for (let i = 0; i < 12 * scale; i++) {
        const data = Buffer.from(Array.from({ length: 4000 + random(8000) }, () => 'w' + random(900)).join(' '));
        jobs.push(new Promise((done, fail) => zlib.deflate(data, { level: 1 + (i % 9) }, (error, packed) => {
            if (error) return fail(error);
            zlib.inflate(packed, (problem, back) => (problem || !back.equals(data) ? fail(problem) : done(sha(packed))));
        })));
    }
    const params = { [zlib.constants.BROTLI_PARAM_QUALITY]: 7 };
    const brotli = zlib.brotliCompressSync(Buffer.alloc(200000, 'weir gate sluice '), { params });
    return sha((await Promise.all(jobs)).join(' ')) + ' ' + sha(brotli);
}

function worker(scale, seed) {
    return new Promise((done, fail) => {
        const thread = new Worker(__filename, { workerData: { scale, seed } });
        thread.on('message', done);
        thread.on('error', fail);
    });
}

function request(port, agent, i) {
    return new Promise((done, fail) => {
        const body = Buffer.alloc(1000 + (i * 7919) % 60000, 97 + (i % 26));
        const call = http.request({ port, host: '127.0.0.1', agent, method: 'POST', path: '/' + i }, (answer) => {
            const parts = [];
            answer.on('data', (part) => parts.push(part));
            answer.on('end', () => done(sha(Buffer.concat(parts))));
        });
        call.on('error', fail);
        call.end(body);
    });
}

async function loopback(scale, port) {
    const server = http.createServer((call, answer) => {
        const parts = [];
        call.on('data', (part) => parts.push(part));
        call.on('end', () => answer.end(JSON.stringify({ path: call.url, sum: sha(Buffer.concat(parts)), text: 'x'.repeat(5000) })));
    });
    await new Promise((ready) => server.listen(port, '127.0.0.1', ready));
    const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
    const sums = await Promise.all(Array.from({ length: 80 * scale }, (_, i) => request(port, agent, i)));
    agent.destroy();
    await new Promise((closed) => server.close(closed));
    return sha(sums.join(' '));
}

async function main(scale, port) {
    console.log('json', json(scale, 1));
    console.log('buffers', buffers(scale, 2));
    console.log('zlib', await compress(scale, 3));
    console.log('workers', (await Promise.all([1, 2, 3, 4].map((seed) => worker(scale, seed)))).join('; '));
    console.log('http', await loopback(scale, port));
}

if (isMainThread) {
    main(Number(process.argv[2]), Number(process.argv[3]));
} else {
    const { scale, seed } = workerData;
    parentPort.postMessage(`${json(scale / 2, seed)} ${buffers(scale / 2, seed)}`);
}
