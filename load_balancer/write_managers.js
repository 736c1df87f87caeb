// The write managers: which one is active, by their own word every second and by the writes that fail in between. Shared
// by all workers. Only the active one gets writes and is asked for lists; the highest epoch wins.
//
// site-http.conf names:   $write_managers  "pool=host:port pool=host:port …" of the internal listeners; pool is the name
//                                          of the upstream that has the public one
// site-secret.conf names: $cluster_secret

import upstreamFiles from 'upstream_files.js';

const ADDRESS = /^[A-Za-z0-9._\-\[\]:]+:[0-9]{1,5}$/;

const STANDBY = 0;          // instead of an epoch
const MAX_MISSED_CHECKS = 2;   // one may be slow; the standby needs about as long to take over
const EPOCH = 'epoch:';     // in its last answer
const BEGUN = 'begun:';     // checks since then, the one in flight too: nginx may kill it, and then nothing else tells
const FAILED = 'failed:';   // a write failed there since then
const LAST_EPOCH = 'last';  // of the one that was active last

function state() {
    return ngx.shared.write_managers;
}

function all(variables) {
    return variables.write_managers.split(' ').filter((word) => word !== '').map((word) => {
        const parts = word.split('=');
        return {pool: parts[0], internal: parts[1]};
    });
}

// undefined before the first answer.
function epochOf(manager) {
    return state().get(EPOCH + manager.pool);
}

function checksSinceAnswer(manager) {
    return state().get(BEGUN + manager.pool) || 0;
}

function isLost(manager) {
    return checksSinceAnswer(manager) > MAX_MISSED_CHECKS;
}

function hasFailed(manager) {
    return state().get(FAILED + manager.pool) === 1;
}

// The one with the highest epoch; undefined when none is active.
function active(variables) {
    return all(variables)
        .filter((manager) => epochOf(manager) > STANDBY && !isLost(manager))
        .sort((a, b) => epochOf(b) - epochOf(a))[0];
}

// It may be merely slow, and answer a write within the time that a write has.
function isLastResort(manager) {
    return isLost(manager) && !hasFailed(manager)
        && epochOf(manager) > STANDBY && epochOf(manager) === state().get(LAST_EPOCH);
}

// undefined when there is no answer that can be read.
async function fetchStatus(session, manager) {
    try {
        const answer = await fetchFrom(session, manager, '/internal/status');
        if (answer.status === 404) {
            return {active: true, epoch: 1};   // of an older release, during an upgrade: it knows no standby
        }
        const body = await answer.json();
        return answer.status === 200 && typeof body.active === 'boolean' ? body : undefined;
    } catch (error) {
        return undefined;
    }
}

// Every second. What one answers counts at once: nginx kills a check that takes longer, and one that is away may make it.
async function check(session) {
    const variables = session.variables;
    const managers = all(variables);
    observed(variables, () => managers.forEach((manager) => state().incr(BEGUN + manager.pool, 1, 0)));
    await Promise.all(managers.map(async (manager) => {
        const answer = await fetchStatus(session, manager);
        if (answer !== undefined) {
            observed(variables, () => {
                state().set(EPOCH + manager.pool, answer.active ? Number(answer.epoch) : STANDBY);
                state().set(BEGUN + manager.pool, 0);
                state().delete(FAILED + manager.pool);
            });
        }
    }));
}

function observed(variables, change) {
    const before = active(variables);
    change();
    const now = active(variables);
    if ((before && before.pool) !== (now && now.pool)) {
        ngx.log(ngx.WARN, now ? `write managers: ${now.pool} is active, epoch ${epochOf(now)}` : 'write managers: none is active');
    }
    if (now) {
        state().set(LAST_EPOCH, epochOf(now));
    }
    publish(variables);
}

// To nginx's own directives: the flags of upstream_files.js.
function publish(variables) {
    const now = active(variables);
    const isTaken = now !== undefined && !hasFailed(now);
    upstreamFiles.setFlag(variables, 'write_2', isTaken && now.pool === 'write_2');
    upstreamFiles.setFlag(variables, 'write', isTaken);
}

// For a write, or for a second attempt when the first one sent nothing: `tried` has the pools so far. Empty: none.
//   1. the active one
//   2. a standby: it may be active since its last check, and until then it refuses connections
//   3. the active one again: after a failed write while it answers its checks, or when it no longer does, until a write
//      fails there
// Before the first check any may be the active one. One with a lower epoch than another is fenced.
function pool(variables, tried) {
    const now = active(variables);
    const rank = (manager) => {
        if (epochOf(manager) === undefined) {
            return isLost(manager) ? 0 : 3;
        }
        if (now && manager.pool === now.pool) {
            return hasFailed(manager) ? 1 : 4;
        }
        if (epochOf(manager) === STANDBY) {
            return checksSinceAnswer(manager) <= 1 ? 2 : 0;
        }
        return !now && isLastResort(manager) ? 1 : 0;
    };
    const candidates = all(variables).filter((manager) => !tried.includes(manager.pool) && rank(manager) > 0);
    return candidates.length ? candidates.sort((a, b) => rank(b) - rank(a))[0].pool : '';
}

// No more writes by nginx's own directives until a check succeeds.
function observe(variables, failedPool) {
    state().set(FAILED + failedPool, 1);
    publish(variables);
}

function fetchFrom(session, manager, path) {
    return ngx.fetch(`http://${manager.internal}${path}`, {
        headers: {'X-Myqueue-Secret': session.variables.cluster_secret},
    });
}

// The parsed answer of the active one; undefined when there is none.
async function fetchJson(session, path) {
    const now = active(session.variables);
    if (now === undefined) {
        return undefined;
    }
    try {
        const answer = await fetchFrom(session, now, path);
        return answer.status === 200 ? await answer.json() : undefined;
    } catch (error) {
        return undefined;
    }
}

// Checked because it becomes an argument of proxy_pass.
function isAddress(text) {
    return ADDRESS.test(text);
}

export default {check, pool, observe, fetchJson, isAddress};
