// What nginx's own directives know of the managers and brokers: files, so that an ordinary request runs no script. A
// flag is a file that exists; nginx.conf tests it with -f and asks the scripts while it does not.
//
//   readers   "host:port host:port …" of the ready read managers; dns.js answers with them, the upstream `read` asks it
//   answered  what dns.js has answered: the upstream `read` has these servers a moment later
//   read      flag: the upstream `read` has the servers of `readers`; so has `wait`
//   write     flag: a write manager is active and no write has failed there
//   write_2   flag: it is the second one
//   brokers   flag: every broker of the configuration is at its configured address
//
// site-http.conf names:  $upstream_files  the folder

import fs from 'fs';

const READERS = 'readers';
const ANSWERED = 'answered';
const SETTLED_MS = 500;   // until the upstream has the servers of an answer
const IPV4 = /^[0-9]{1,3}(\.[0-9]{1,3}){3}:[0-9]{1,5}$/;   // all that dns.js can answer with

function pathOf(variables, name) {
    return `${variables.upstream_files}/${name}`;
}

function setReadFlags(variables, wanted) {
    setFlag(variables, 'read', wanted);
    setFlag(variables, 'wait', wanted);
}

function setFlag(variables, name, wanted) {
    const path = pathOf(variables, name);
    try {
        if (!wanted) {
            fs.unlinkSync(path);
        } else if (!fs.existsSync(path)) {
            fs.writeFileSync(path, '');
        }
    } catch (error) {
        // Absent already, or another worker was faster.
    }
}

function content(path) {
    try {
        return fs.readFileSync(path, 'utf8');
    } catch (error) {
        return undefined;
    }
}

// Atomic: other workers read it.
function write(path, text) {
    const written = `${path}-${ngx.worker_id}`;
    try {
        fs.writeFileSync(written, text);
        fs.renameSync(written, path);
    } catch (error) {
        ngx.log(ngx.WARN, `upstream_files: ${error}`);
    }
}

function isSettled(variables, text) {
    const path = pathOf(variables, ANSWERED);
    return content(path) === text && Date.now() - fs.statSync(path).mtimeMs > SETTLED_MS;
}

// Called after every change and every second, so that what two workers wrote at once does not stay.
function setReaders(variables, addresses) {
    if (addresses.length === 0) {
        // The file keeps the last ones: an empty answer would be an error in the log every second.
        setReadFlags(variables, false);
        return;
    }
    const path = pathOf(variables, READERS);
    const text = addresses.slice().sort().join(' ');
    if (content(path) !== text) {
        setReadFlags(variables, false);
        write(path, text);
        return;
    }
    setReadFlags(variables, isSettled(variables, text) && addresses.every((address) => IPV4.test(address)));
}

// For dns.js.
function takeReaders(variables) {
    const text = content(pathOf(variables, READERS)) || '';
    const answered = pathOf(variables, ANSWERED);
    if (content(answered) !== text) {
        write(answered, text);
    }
    return text.split(' ').filter((address) => IPV4.test(address));
}

export default {setFlag, setReaders, takeReaders};
