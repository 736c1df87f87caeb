// nginx's own errors in the JSON of the error table (myqueue.protocol.errors).

import brokers from 'brokers.js';
import health from 'health.js';

const TABLE = {
    400: {error_code: 40001, message: 'invalid request', retriable: false},
    404: {error_code: 40400, message: 'no such path', retriable: false},
    405: {error_code: 40500, message: 'method not allowed', retriable: false},
    408: {error_code: 40800, message: 'request timed out', retriable: true},
    413: {error_code: 41301, message: 'request is too large', retriable: false},
    429: {error_code: 42901, message: 'too many requests', retriable: true},
    500: {error_code: 50001, message: 'internal error; the request id finds it in the logs', retriable: false},
    502: {error_code: 50201, message: 'the server behind the load balancer failed', retriable: true},
    503: {error_code: 50304, message: 'no healthy manager can take the request', retriable: true},
    504: {error_code: 50401, message: 'the server behind the load balancer is slow', retriable: true},
};

// For requests to brokers.
const BROKER_TABLE = {
    404: {error_code: 40406, message: 'broker not found', retriable: false},
    503: {error_code: 50301, message: 'temporarily unavailable', retriable: true},
};

// Only limit_conn answers 429 here.
const TOO_MANY = 'too many requests at the same time from this address';

function answer(r, status, outcome) {
    const entry = r.variables.broker_id && BROKER_TABLE[status] || TABLE[status];
    const body = {
        status: 'failure',
        error_code: entry.error_code,
        message: status === 429 ? TOO_MANY : entry.message,
        retriable: entry.retriable,
    };
    if (outcome) {
        body.outcome = outcome;
    }
    body.request_id = r.variables.request_id;
    r.headersOut['Content-Type'] = 'application/json';
    if (status === 429 || status >= 502) {
        r.headersOut['Retry-After'] = '1';
    }
    r.return(status, JSON.stringify(body) + '\n');
}

// From the original request line: on the way to an error page nginx turns every method into GET.
function isWrite(r) {
    return !/^(GET|HEAD) /.test(r.variables.request || '');
}

// A consume moves a cursor: when its answer is lost, the message may count as delivered.
function isConsume(r) {
    return !isWrite(r) && /^\/consumer\/consume\/?$/.test(r.variables.uri);
}

// nginx itself refused the request: no manager has received it.
function refused(r) {
    const status = Number(r.variables.status);
    answer(r, TABLE[status] ? status : 500, isWrite(r) ? 'not_written' : undefined);
}

// No upstream for the broker that the path names.
function noBroker(r) {
    answer(r, brokers.isFollowed() ? 404 : 503, isWrite(r) ? 'not_written' : undefined);
}

// No answer from the upstream. A read is retried at the next manager while there is one. If not a byte was sent to any
// upstream, a write was certainly not done, and another write manager may get it.
function upstreamFailed(r) {
    if (!r.variables.broker_id) {
        health.observe(r);
        if (r.variables.tier === 'write' ? health.canWriteElsewhere(r) : health.canReadElsewhere(r)) {
            r.internalRedirect(`@chosen_${r.variables.tier}`);
            return;
        }
    }
    const statuses = (r.variables.upstream_status || '502').split(/, | : /);
    if (health.isUnsent(r)) {
        answer(r, 503, isWrite(r) ? 'not_written' : undefined);
        return;
    }
    const status = statuses[statuses.length - 1] === '504' ? 504 : 502;
    answer(r, status, isWrite(r) || isConsume(r) ? 'unknown' : undefined);
}

export default {refused, noBroker, upstreamFailed};
