// A DNS server on the loopback for one question: which read managers are ready. The upstream `read` asks every second
// and keeps its connections to those that stay (see upstream_files.js).
//
//   _http._tcp.read.myqueue  SRV  port and "<address in hexadecimal>.read.myqueue" of each
//   7f000001.read.myqueue    A    127.0.0.1
//
// site-dns.conf names:  $upstream_files, as for upstream_files.js

import upstreamFiles from 'upstream_files.js';

const HEADER = 12;
const A = 1;
const SRV = 33;

function endOfQuestion(query) {
    let at = HEADER;
    while (at < query.length && query[at] !== 0) {
        at += query[at] + 1;
    }
    return at + 5;   // root label, type, class
}

// Where the labels "read.myqueue" of the question begin, to point to.
function positionOfZone(query) {
    return query.indexOf('\x04read\x07myqueue\x00', HEADER);
}

function record(type, data) {
    const head = Buffer.alloc(HEADER);
    head.writeUInt16BE(0xc000 + HEADER, 0);   // the name of the question
    head.writeUInt16BE(type, 2);
    head.writeUInt16BE(1, 4);                 // class IN
    head.writeUInt32BE(0, 6);                 // TTL: nginx asks again after a second
    head.writeUInt16BE(data.length, 10);
    return Buffer.concat([head, data]);
}

function srv(address, zone) {
    const colon = address.lastIndexOf(':');
    const host = address.slice(0, colon).split('.').map(Number);
    const data = Buffer.alloc(17);
    data.writeUInt16BE(1, 0);                 // priority
    data.writeUInt16BE(1, 2);                 // weight
    data.writeUInt16BE(Number(address.slice(colon + 1)), 4);
    data[6] = 8;
    data.write(Buffer.from(host).toString('hex'), 7, 8);
    data.writeUInt16BE(0xc000 + zone, 15);
    return record(SRV, data);
}

function answers(query, variables) {
    const zone = positionOfZone(query);
    const type = query.readUInt16BE(endOfQuestion(query) - 4);
    if (type === SRV && zone > HEADER) {
        return upstreamFiles.takeReaders(variables).map((address) => srv(address, zone));
    }
    if (type === A && zone === HEADER + 9) {
        return [record(A, Buffer.from(query.toString('utf8', HEADER + 1, zone), 'hex'))];
    }
    return [];
}

// Nothing when no manager is known: nginx asks again sooner than after "no such name".
function reply(query, variables) {
    const found = answers(query, variables);
    if (found.length === 0) {
        return '';
    }
    const head = Buffer.from(query.slice(0, endOfQuestion(query)));
    head.writeUInt16BE(0x8500 | (query[2] & 1) << 8, 2);   // an authoritative answer
    head.writeUInt16BE(found.length, 6);
    head.writeUInt16BE(0, 8);
    head.writeUInt16BE(0, 10);
    return Buffer.concat([head].concat(found));
}

// js_preread: keeps the query.
function read(s) {
    s.on('upstream', (data) => {
        if (data.length > HEADER) {
            s.variables.dns_query = data.toString('hex');
            s.done();
        }
    });
}

// js_filter: replaces what `return` says.
function answer(s) {
    s.on('downstream', (data, flags) => {
        s.send(reply(Buffer.from(s.variables.dns_query, 'hex'), s.variables), flags);
    });
}

export default {read, answer};
