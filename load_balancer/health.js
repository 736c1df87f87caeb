// Which managers can take requests: checked in turn, marked down by failed requests, shared by all workers.
//
// site-http.conf names:  $read_fallback  upstream for reads when no manager is known that answers; empty: there is none

import managers from 'managers.js';

const READY = 2;     // /readyz says 200
const ANSWERS = 1;   // answers, but something it needs is away: it can still tell the client what
const SILENT = 0;    // does not answer

const WRITE_MANAGER = {pool: 'write', followed: false};
const LEVEL = 'level:';

const MAX_PASSES = 5;   // more would exceed nginx's own limit of redirects inside a request
const MAX_SECONDS = 33;  // after that no other manager is asked: its answer would come too late for the client

function state() {
    return ngx.shared.health;
}

// One that nobody asked yet: if the configuration names it, it is taken for ready, because the first requests must not
// wait for the first check. One that was just heard of is asked first, as long as others are ready.
function levelOf(manager) {
    const level = state().get(LEVEL + manager.pool);
    if (level !== undefined) {
        return level;
    }
    return manager.followed ? ANSWERS : READY;
}

function setLevel(manager, level) {
    const before = levelOf(manager);
    state().set(LEVEL + manager.pool, level);
    if (before !== level) {
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

// Both at once: a manager whose database hangs may be slow to say that it is not ready, and yet serve what needs none.
async function ask(manager) {
    const statuses = await Promise.all([statusOf(manager, '/readyz'), statusOf(manager, '/healthz')]);
    if (statuses[0] === 200) {
        return READY;
    }
    return statuses[0] || statuses[1] ? ANSWERS : SILENT;
}

// Every manager, regularly.
async function checkAll(session) {
    await Promise.all(managers.all(session.variables).map(async (manager) => {
        setLevel(manager, await ask(manager));
    }));
}

// In between, those that are not ready, because people wait for their return. Asked with less patience than above,
// so a bad answer changes nothing.
async function checkAway(session) {
    const known = managers.all(session.variables);
    forgetAllBut(known);
    await Promise.all(known.filter((manager) => levelOf(manager) !== READY).map(async (manager) => {
        const level = await ask(manager);
        if (level > levelOf(manager)) {
            setLevel(manager, level);
        }
    }));
}

// An address that comes back may be another manager.
function forgetAllBut(known) {
    const keys = known.map((manager) => LEVEL + manager.pool);
    state().keys().filter((key) => key.startsWith(LEVEL) && !keys.includes(key)).forEach((key) => state().delete(key));
}

// What nginx lists about the upstreams of a request: "," after a try, " :" after a redirect inside nginx.
function each(list) {
    return list ? list.split(/, | : /) : [];
}

function passes(r) {
    return r.variables.upstream_addr ? r.variables.upstream_addr.split(' : ').length : 0;
}

function untried(r) {
    const tried = each(r.variables.upstream_addr);
    return managers.readers(r.variables).filter((manager) => !tried.includes(manager.address));
}

// The best ones in strict turn. When none is ready those that answer are asked: they say what is wrong, better than
// we can; when none answers all are tried, because the last check may be out of date.
function readPool(r) {
    const left = untried(r);
    const best = left.map(levelOf).reduce((a, b) => Math.max(a, b), SILENT);
    const fallback = r.variables.read_fallback;
    if (fallback && (best === SILENT || passes(r) === MAX_PASSES - 1)) {
        r.variables.read_last_resort = '1';
        return fallback;
    }
    const candidates = left.length ? left.filter((manager) => levelOf(manager) === best) : managers.readers(r.variables);
    return candidates[state().incr('turn', 1, 0) % candidates.length].pool;
}

// Whether a read that failed may go to somebody who has not seen it.
function canReadElsewhere(r) {
    return !r.variables.read_last_resort
        && passes(r) < MAX_PASSES && Number(r.variables.request_time) < MAX_SECONDS
        && (r.variables.read_fallback !== '' || untried(r).length > 0);
}

function writePool() {
    return levelOf(WRITE_MANAGER) === SILENT ? '' : WRITE_MANAGER.pool;
}

// Runs when a request is logged, or goes elsewhere. An upstream that failed it gets no more until a check finds it well.
function observe(r) {
    const statuses = each(r.variables.upstream_status);
    const failed = each(r.variables.upstream_addr).filter((_, i) => statuses[i] === '502' || statuses[i] === '504');
    if (failed.length) {
        managers.readers(r.variables)
            .filter((manager) => failed.includes(manager.address))
            .forEach((manager) => setLevel(manager, SILENT));
    }
    return '1';
}

export default {checkAll, checkAway, readPool, writePool, observe, canReadElsewhere};
