// Which managers can take requests: checked in turn, marked down by failed requests, shared by all workers.
//
// site-http.conf names them:  $managers    "pool=host:port pool=host:port …" of every manager
//                             $read_pools  "pool pool …" of the read managers

const READY = 2;     // /readyz says 200
const ANSWERS = 1;   // answers, but something it needs is away: it can still tell the client what
const SILENT = 0;    // does not answer

const WRITE_POOL = 'write';

function words(text) {
    return text.split(' ').filter((word) => word !== '');
}

function state() {
    return ngx.shared.health;
}

// A manager that nobody asked yet is taken for ready: the first requests must not wait for the first check.
function levelOf(pool) {
    const level = state().get(`level:${pool}`);
    return level === undefined ? READY : level;
}

function setLevel(pool, level) {
    const before = levelOf(pool);
    state().set(`level:${pool}`, level);
    if (before !== level) {
        ngx.log(ngx.WARN, `health: ${pool} ${['does not answer', 'answers but is not ready', 'is ready'][level]}`);
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

function managersOf(variables) {
    return words(variables.managers).map((word) => {
        const parts = word.split('=');
        return {pool: parts[0], address: parts[1]};
    });
}

// Every manager, regularly.
async function checkAll(session) {
    await Promise.all(managersOf(session.variables).map(async (manager) => {
        setLevel(manager.pool, await ask(manager));
    }));
}

// In between, those that are not ready, because people wait for their return. Asked with less patience than above,
// so a bad answer changes nothing.
async function checkAway(session) {
    const away = managersOf(session.variables).filter((manager) => levelOf(manager.pool) !== READY);
    await Promise.all(away.map(async (manager) => {
        const level = await ask(manager);
        if (level > levelOf(manager.pool)) {
            setLevel(manager.pool, level);
        }
    }));
}

// The best ones in strict turn. When none is ready those that answer are asked: they say what is wrong, better than
// we can; when none answers all are tried, because the last check may be out of date.
function readPool(r) {
    const pools = words(r.variables.read_pools);
    const best = pools.map(levelOf).reduce((a, b) => Math.max(a, b), SILENT);
    const candidates = pools.filter((pool) => levelOf(pool) === best);
    return candidates[state().incr('turn', 1, 0) % candidates.length];
}

function writePool() {
    return levelOf(WRITE_POOL) === SILENT ? '' : WRITE_POOL;
}

// Runs when a request is logged. An upstream that failed a request gets no more until a check finds it well.
function observe(r) {
    const addresses = r.variables.upstream_addr;
    if (addresses) {
        const statuses = r.variables.upstream_status.split(/[,:] /);
        const failed = addresses.split(/[,:] /).filter((_, i) => statuses[i] === '502' || statuses[i] === '504');
        if (failed.length) {
            managersOf(r.variables)
                .filter((manager) => manager.pool !== WRITE_POOL && failed.includes(manager.address))
                .forEach((manager) => setLevel(manager.pool, SILENT));
        }
    }
    return '1';
}

export default {checkAll, checkAway, readPool, writePool, observe};
