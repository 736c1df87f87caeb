// Health of the read managers: active checks, and marked down by failed requests. Shared by all workers.
//
// site-http.conf names:  $read_fallback  upstream for reads when no known manager answers; may be empty

import managers from 'managers.js';
import upstreamFiles from 'upstream_files.js';
import writeManagers from 'write_managers.js';

const READY = 2;     // /readyz says 200
const ANSWERS = 1;   // answers, but a dependency is unavailable: its own error is better than ours
const SILENT = 0;    // does not answer

const LEVEL = 'level:';

const MAX_PASSES = 5;   // more would exceed nginx's own limit of redirects inside a request
const MAX_SECONDS = 33;  // after that no other manager is tried: its answer would be too late for the client

function state() {
    return ngx.shared.health;
}

// Before its first check, a configured manager counts as ready, because the first requests must not wait for the check.
// A followed one counts as not ready, so that ready ones are preferred until it is checked.
function levelOf(manager) {
    const level = state().get(LEVEL + manager.pool);
    if (level !== undefined) {
        return level;
    }
    return manager.followed ? ANSWERS : READY;
}

function setLevel(variables, manager, level) {
    const before = levelOf(manager);
    state().set(LEVEL + manager.pool, level);
    if (before !== level) {
        publish(variables);
        ngx.log(ngx.WARN, `health: ${manager.pool} ${['does not answer', 'answers but is not ready', 'is ready'][level]}`);
    }
}

async function statusOf(manager, path) {
    try {
        const answer = await ngx.fetch(`http://${manager.address}${path}`, {headers: {'Host': 'health-check'}});
        return answer.status;
    } catch (error) {
        return 0;
    }
}

// Both at once: a manager whose database hangs may answer /readyz late and still serve routes that need no database.
async function check(manager) {
    const statuses = await Promise.all([statusOf(manager, '/readyz'), statusOf(manager, '/healthz')]);
    if (statuses[0] === 200) {
        return READY;
    }
    return statuses[0] || statuses[1] ? ANSWERS : SILENT;
}

// Every manager, regularly.
async function checkAll(session) {
    await Promise.all(managers.all(session.variables).map(async (manager) => {
        setLevel(session.variables, manager, await check(manager));
    }));
}

// More often, the managers that are not ready, to notice early that they are again. The timeout is shorter than that of
// checkAll, so a bad answer changes nothing.
async function checkUnready(session) {
    const known = managers.all(session.variables);
    forgetAllBut(known);
    await Promise.all(known.filter((manager) => levelOf(manager) !== READY).map(async (manager) => {
        const level = await check(manager);
        if (level > levelOf(manager)) {
            setLevel(session.variables, manager, level);
        }
    }));
}

// Every second: a manager that leaves the list gets no more requests.
async function followManagers(session) {
    await managers.refresh(session);
    publish(session.variables);
}

// To nginx's own directives, after every change and every second.
function publish(variables) {
    const ready = managers.all(variables).filter((manager) => levelOf(manager) === READY);
    upstreamFiles.setReaders(variables, ready.map((manager) => manager.address));
}

// A later manager at the same address must not inherit the state.
function forgetAllBut(known) {
    const keys = known.map((manager) => LEVEL + manager.pool);
    state().keys().filter((key) => key.startsWith(LEVEL) && !keys.includes(key)).forEach((key) => state().delete(key));
}

// nginx's lists about the upstreams of a request: "," separates tries, " :" internal redirects.
function each(list) {
    return list ? list.split(/, | : /) : [];
}

function passes(r) {
    return r.variables.upstream_addr ? r.variables.upstream_addr.split(' : ').length : 0;
}

function untried(r) {
    const tried = each(r.variables.upstream_addr);
    return managers.all(r.variables).filter((manager) => !tried.includes(manager.address));
}

// Round robin over the managers of the best level. When none is ready, those that answer report the error themselves;
// when none answers, all are tried, because the last check may be out of date.
function readPool(r) {
    const left = untried(r);
    const best = left.map(levelOf).reduce((a, b) => Math.max(a, b), SILENT);
    const fallback = r.variables.read_fallback;
    if (fallback && (best === SILENT || passes(r) === MAX_PASSES - 1)) {
        r.variables.read_last_resort = '1';
        return fallback;
    }
    const candidates = left.length ? left.filter((manager) => levelOf(manager) === best) : managers.all(r.variables);
    return candidates[state().incr('turn', 1, 0) % candidates.length].pool;
}

// Whether a failed read can be retried at a manager that has not received it.
function canReadElsewhere(r) {
    return !r.variables.read_last_resort
        && passes(r) < MAX_PASSES && Number(r.variables.request_time) < MAX_SECONDS
        && (r.variables.read_fallback !== '' || untried(r).length > 0);
}

function writePool(r) {
    return writeManagers.pool(r.variables, (r.variables.tried_write_pools || '').split(' '));
}

// Whether a write that failed can go to another write manager: not a byte of it was sent. By the names of upstreams:
// $upstream_addr has addresses where the configuration has names.
function canWriteElsewhere(r) {
    r.variables.tried_write_pools = `${r.variables.tried_write_pools || ''} ${r.variables.write_upstream}`;
    r.variables.write_pool = writePool(r);
    return isUnsent(r) && r.variables.write_pool !== '';
}

function isUnsent(r) {
    return each(r.variables.upstream_bytes_sent || '0').every((bytes) => bytes === '0' || bytes === '-');
}

// Runs when a request is logged or retried. An upstream that failed gets no requests until a check succeeds.
function observe(r) {
    const statuses = each(r.variables.upstream_status);
    const hasFailed = (status) => status === '502' || status === '504';
    if (r.variables.tier === 'write') {
        if (hasFailed(statuses[statuses.length - 1])) {
            writeManagers.observe(r.variables, r.variables.write_upstream);
        }
        return '1';
    }
    const failed = each(r.variables.upstream_addr).filter((_, i) => hasFailed(statuses[i]));
    if (failed.length) {
        managers.all(r.variables)
            .filter((manager) => failed.includes(manager.address))
            .forEach((manager) => setLevel(r.variables, manager, SILENT));
    }
    return '1';
}

export default {
    checkAll, checkUnready, followManagers, readPool, writePool, observe, canReadElsewhere, canWriteElsewhere, isUnsent,
};
