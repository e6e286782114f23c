"use strict";
// All text goes in by textContent: names come from clients. Nothing here writes markup.
const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const CLASSES = ["2xx", "3xx", "4xx", "5xx"];
const ROWS = 180;            // as many as weir keeps
const RATE_OVER_MS = 2500;   // rates are over this time: calm enough to read, quick enough for a flood
const SORT_EVERY_MS = 2000;  // rows do not move more often

let chosen = "all"; // a replica, where they have connections to each other
let snaps = [], history = null, rowFrom = null, frozen = null, lastHeard = 0, lostSince = null, source = null;

// --- numbers -------------------------------------------------------------------------------------------------------------
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const big = n => n < 100000 ? whole.format(n) : compact.format(n);
const NONE = "\u2013"; // before there is a rate
const rateText = n => n === null || n === undefined ? NONE : n <= 0 ? "0" : n < 0.1 ? "<0.1" : n < 10 ? n.toFixed(1) : big(n);
const seconds = s => s === 0 ? "0" : s < 0.001 ? "<1 ms" : s < 1 ? Math.round(s * 1000) + " ms" : s < 100 ? s.toFixed(1) + " s" : whole.format(s) + " s";
const share = (part, all) => part >= all * .995 ? "100 %" : part >= all * .01 ? Math.round(part / all * 100) + " %" : "<1 %";
// The greatest value of an axis: 1, 2 or 5 with zeros.
const nice = n => { if (!(n > 0)) return 0; const ten = 10 ** Math.floor(Math.log10(n)); return [1, 2, 5, 10].map(f => f * ten).find(v => v >= n * .999) || n; };
const greatest = values => values.reduce((a, b) => Math.max(a, b), 0);
const bytes = n => { const u = ["B", "KiB", "MiB", "GiB", "TiB"]; let i = 0; while (n >= 1024 && i < 4) { n /= 1024; i++; } return (i && n < 10 ? n.toFixed(1) : Math.round(n)) + " " + u[i]; };
const span = s => s < 60 ? Math.floor(s) + " s" : s < 3600 ? Math.floor(s / 60) + " min" : s < 86400 ? Math.floor(s / 3600) + " h " + Math.floor(s / 60 % 60) + " min" : Math.floor(s / 86400) + " d " + Math.floor(s / 3600 % 24) + " h";
const clock = ms => new Date(ms).toLocaleTimeString("en-GB");
const minute = ms => clock(ms).slice(0, 5);
const sum = o => Object.values(o).reduce((a, b) => a + b, 0);
const byClass = codes => { const o = {}; for (const c of CLASSES) o[c] = 0; for (const [code, n] of Object.entries(codes)) { const c = code[0] + "xx"; if (c in o) o[c] += n; } return o; };

// --- elements ------------------------------------------------------------------------------------------------------------
// Characters that would reorder or hide what stands beside them are escaped, and so is the backslash: no two names look alike.
const plain = text => String(text).replace(/[\\\p{C}\p{Zl}\p{Zp}]/gu, c => c === "\\" ? "\\\\" : "\\u{" + c.codePointAt(0).toString(16) + "}");
function make(tag, cls, text) { const e = document.createElement(tag); if (cls) e.className = cls; if (text !== undefined) e.textContent = plain(text); return e; }
// lines: what stands in the title, each on a line.
function tip(e, ...lines) { e.title = lines.map(plain).join("\n"); }
function put(e, text) { text = plain(text); if (e.textContent !== text) e.textContent = text; }
function cls(e, name) { if (e.className !== name) e.className = name; }
// A line of values; a value that is 0 is none.
function line(values, most, height) {
  const x0 = 180 - (values.length - 1);
  let d = "", drawn = false;
  values.forEach((v, i) => { if (v > 0) d += (drawn ? "L" : "M") + (x0 + i) + " " + (height - Math.min(v / most, 1) * (height - 2)).toFixed(1) + (drawn ? "" : "h.5"); drawn = v > 0; });
  return d;
}
// The numbers of an axis; none if nothing is drawn.
function axis(svg, most, show, which = "") {
  const of = name => svg.parentElement.querySelector("." + name + (which ? "." + which : ":not(.right)"));
  put(of("top"), most ? show(most) : ""); put(of("mid"), most ? show(most / 2) : "");
}
// A small plot in a card, with the number at its top.
function mini(svg, values, most, show, area, cls) {
  shape(svg, cls).setAttribute("d", values.some(v => v > 0) ? area ? path(values, most, 34, true) : line(values, most, 34) : "");
  put(svg.nextElementSibling, values.some(v => v > 0) ? show(most) : "");
}

function shape(svg, name) { let p = svg.querySelector("." + name); if (!p) { p = document.createElementNS(SVG, "path"); p.setAttribute("class", name); svg.append(p); } return p; }

// values to a path over 180 x height, newest at the right; closed to the bottom if `area`.
function path(values, most, height, area, x0 = 180 - (values.length - 1)) {
  if (!values.length) return "";
  let d = "";
  for (let i = 0; i < values.length; i++) d += (i ? "L" : "M") + (x0 + i) + " " + (height - Math.min(values[i] / most, 1) * (height - 2)).toFixed(1);
  return area ? d + "L" + (x0 + values.length - 1) + " " + height + "L" + x0 + " " + height + "Z" : d;
}

// what is between two lines.
function band(above, below, most, height) {
  const at = (v, i) => (180 - above.length + 1 + i) + " " + (height - Math.min(v / most, 1) * (height - 2)).toFixed(1);
  return "M" + above.map(at).join("L") + "L" + below.map(at).reverse().join("L") + "Z";
}

// --- tables with columns that sort ---------------------------------------------------------------------------------------
// columns: {id, title, value(row), show(cell, row), text (left), plain (does not sort)}; the first is the row's name.
function table(el, columns, order, descending) {
  const t = { el, columns, order, descending, rows: new Map(), sorted: 0, dirty: true };
  const head = el.createTHead().insertRow();
  for (const c of columns) {
    const th = make("th", c.text ? "text" : "");
    th.scope = "col";
    if (c.plain) th.textContent = c.title;
    else {
      const b = make("button", "", c.title);
      b.type = "button";
      b.addEventListener("click", () => { t.descending = t.order === c.id ? !t.descending : !c.text || !!c.number; t.order = c.id; t.dirty = true; mark(); t.draw(t.last || []); });
      th.append(b);
    }
    c.th = th; head.append(th);
  }
  const body = el.createTBody();
  function mark() { for (const c of columns) { if (c.id === t.order) c.th.setAttribute("aria-sort", t.descending ? "descending" : "ascending"); else c.th.removeAttribute("aria-sort"); } }
  mark();
  t.title = (id, title) => put(columns.find(c => c.id === id).th.firstChild, title);
  t.draw = data => {
    t.last = data;
    const seen = new Set();
    for (const row of data) {
      seen.add(row.key);
      let r = t.rows.get(row.key);
      if (!r) {
        r = { tr: document.createElement("tr"), cells: [] };
        columns.forEach((c, i) => { const cell = make(i ? "td" : "th", c.text ? "text" : ""); if (!i) cell.scope = "row"; r.cells.push(cell); r.tr.append(cell); });
        t.rows.set(row.key, r); t.dirty = true;
      }
      r.row = row;
      columns.forEach((c, i) => c.show(r.cells[i], row));
    }
    for (const [key, r] of t.rows) if (!seen.has(key)) { r.tr.remove(); t.rows.delete(key); }
    const now = performance.now();
    if (t.dirty || now - t.sorted > SORT_EVERY_MS) {
      t.sorted = now; t.dirty = false;
      const c = columns.find(c => c.id === t.order), sign = t.descending ? -1 : 1;
      const value = r => (t.order ? c.value(r.row) : 0);
      const all = [...t.rows.values()].sort((a, b) => {
        const x = value(a), y = value(b);
        return (x < y ? -sign : x > y ? sign : 0) || (a.row.name < b.row.name ? -1 : 1);
      });
      if (all.some((r, i) => body.children[i] !== r.tr)) for (const r of all) body.append(r.tr);
    }
  };
  return t;
}
const text = (get, dim) => (cell, row) => { const v = get(row); put(cell, v); cell.title = ""; if (dim) cls(cell, v === "0" || v === "\u2013" ? "dim" : ""); };
const tagged = (cell, row) => { if (!cell.firstChild) cell.append(make("span"), make("span", "tag")); put(cell.firstChild, row.name); put(cell.lastChild, row.tag); tip(cell, row.name); };
const named = (cell, row) => { put(cell, row.name || "(none)"); tip(cell, row.name); };

function fillBar(bar, used, limit, nominal, over) {
  if (!bar.firstChild) bar.append(make("i"), make("b"));
  const [i, b] = bar.children, scale = Math.max(limit, nominal || 0, used, 1);
  i.style.width = (used / scale * 100).toFixed(1) + "%";
  cls(i, over ? "over" : limit && used >= limit ? "full" : "");
  b.hidden = !nominal || nominal === limit;
  if (!b.hidden) b.style.left = (nominal / scale * 100).toFixed(1) + "%";
}
function bars(cell, l) {
  if (!cell.firstChild) { cell.append(make("span", "bar"), make("span", "of")); }
  const [bar, of] = cell.children;
  const none = l.currentLimit === null || l.currentLimit === undefined;
  bar.hidden = none;
  if (!none) fillBar(bar, l.seatsInUse, l.currentLimit, l.nominalLimit, l.no > 0 && !l.paper);
  put(of, none ? l.seatsInUse + " \u2215 \u221e" : l.seatsInUse + " \u2215 " + l.currentLimit);
  cell.title = none ? "no bound" : "nominal " + l.nominalLimit + ", between " + l.lowerLimit + " and " + l.upperLimit;
}
function spark(cell, l) {
  let svg = cell.firstChild;
  if (!svg) {
    svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "0 0 180 24"); svg.setAttribute("preserveAspectRatio", "none"); svg.setAttribute("aria-hidden", "true");
    cell.append(svg);
  }
  const h = l.past; if (!h) return;
  const most = Math.max(1, ...h.seats, l.seatsInUse, l.currentLimit || 0), mostNo = Math.max(1, ...h.rejected), mostWait = Math.max(most, ...h.waiting);
  shape(svg, "seats").setAttribute("d", path(h.seats, most, 24, true));
  shape(svg, "wait").setAttribute("d", h.waiting.some(v => v > 0) ? path(h.waiting, mostWait, 24, false) : "");
  let no = ""; const x0 = 180 - (h.rejected.length - 1);
  h.rejected.forEach((v, i) => { if (v > 0) { const y = 3 + v / mostNo * 9; no += "M" + (x0 + i - .5) + " 0h1v" + y.toFixed(1) + "h-1z"; } });
  cell.title = "Seats: at most " + most + (mostWait > most ? ". Waiting: at most " + mostWait : "") + (no ? ". Rejected: at most " + rateText(mostNo) + " a second" : "");
  shape(svg, "no").setAttribute("d", l.paper ? "" : no); shape(svg, "maybe").setAttribute("d", l.paper ? no : "");
}

const users = all => all.map(u => u.user + " " + whole.format(u.count)).join(", ") || NONE;
const levels = table($("t-levels"), [
  { id: "name", title: "Level", text: true, value: r => r.name, show: tagged },
  { id: "seats", title: "Seats in use \u2215 limit", text: true, number: true, value: r => r.fullness, show: bars },
  { id: "borrowed", title: "Borrowed", value: r => r.borrowed, show: (c, r) => { put(c, r.borrowed > 0 ? "+" + r.borrowed : r.borrowed < 0 ? "lent " + -r.borrowed : "\u2013"); cls(c, r.borrowed ? "" : "dim"); c.title = r.borrowed < 0 ? "Seats are divided by demand every 10 s, and at rest by what levels never lend: this one gets its seats back when its requests need them." : ""; } },
  { id: "waiting", title: "Waiting", value: r => r.waiting, show: (c, r) => { put(c, big(r.waiting)); cls(c, r.waiting ? "warm" : "dim"); if (r.waiting) tip(c, r.waitingSeats + " seats, in " + r.activeQueues + " of " + r.queues + " queues", "waiting: " + users(r.queue.waiting), "seats held by: " + users(r.queue.seats)); else c.title = ""; } },
  { id: "wait", title: "Wait (p99)", value: r => r.p99, show: (c, r) => { put(c, r.p99 ? seconds(r.p99) : NONE); cls(c, r.p99 ? "" : "dim"); c.title = r.wait ? "mean: " + seconds(r.wait) : ""; } },
  { id: "out", title: "Let through\u2215s", value: r => r.out, show: text(r => rateText(r.out), true) },
  { id: "no", title: "Rejected\u2215s", value: r => r.no * 1e6 + r.waiting * 10 + r.fullness, show: (c, r) => { put(c, rateText(r.no)); cls(c, !r.no ? "dim" : r.paper ? "warm" : "hot"); c.title = r.why; } },
  { id: "total", title: "Rejected in all", value: r => r.noTotal, show: text(r => big(r.noTotal), true) },
  { id: "past", title: "15 minutes", plain: true, show: spark },
], "no", true);
const limits = table($("t-limits"), [
  { id: "name", title: "Limit", text: true, value: r => r.name, show: tagged },
  { id: "allows", title: "Allows", text: true, value: r => r.allows, show: (c, r) => { put(c, r.allows); cls(c, "text wrap"); } },
  { id: "passed", title: "Passed\u2215s", value: r => r.pass, show: text(r => rateText(r.pass), true) },
  { id: "delayed", title: "Delayed\u2215s", value: r => r.late, show: text(r => rateText(r.late), true) },
  { id: "no", title: "Rejected\u2215s", value: r => r.dryRun ? r.no * 1e-9 : r.no, show: (c, r) => { put(c, rateText(r.no)); cls(c, !r.no ? "dim" : r.dryRun ? "warm" : "hot"); c.title = r.dryRun ? "would be rejected: it only counts" : ""; } },
  { id: "total", title: "Rejected in all", value: r => r.rejected, show: text(r => big(r.rejected), true) },
  { id: "keys", title: "Keys", value: r => r.keys, show: (c, r) => { put(c, big(r.keys) + " \u2215 " + big(r.mostKeys)); } },
  { id: "top", title: "Rejected most", text: true, value: r => r.top.length ? r.top[0].key : "", show: (c, r) => { put(c, r.top.slice(0, 1).map(k => k.key + " (" + big(k.rejections) + ")").join("") || "\u2013"); cls(c, r.top.length ? "text mono" : "text dim"); tip(c, ...r.top.map(k => k.key + ": " + k.rejections)); } },
], "no", true);
const objects = table($("t-objects"), [
  { id: "name", title: "Object", text: true, value: r => r.name, show: tagged },
  { id: "origin", title: "Comes from", text: true, value: r => r.origin, show: text(r => r.origin) },
], "name", false);
const CLUSTER = { "not-read": "The cluster's are not read", pending: "The cluster's are not read yet", synced: "The cluster's are watched" };
const KINDS = {
  "long-running": "exec, logs, port-forward: each has a connection to the API server; watches take one for each connection that they share",
  "watch": "watches, which share connections",
  "unproven-long-running": "long-running requests without a credential that the API server has accepted",
  "unproven": "other requests without a credential that the API server has accepted",
};
const holder = h => (h.by === "watches" ? "connections that watches share" : h.name || "(none)") + " (" + big(h.taken) + ")";
const places = table($("t-places"), [
  { id: "name", title: "Kind", text: true, value: r => r.name, show: (c, r) => { put(c, r.name); c.title = KINDS[r.name] || ""; } },
  { id: "taken", title: "Taken \u2215 all", text: true, number: true, value: r => r.taken / Math.max(r.total, 1), show: (c, r) => { if (!c.firstChild) c.append(make("span", "bar"), make("span", "of")); fillBar(c.firstChild, r.taken, r.total, 0, false); put(c.lastChild, big(r.taken) + " \u2215 " + big(r.total)); } },
  { id: "users", title: "Held most by users", text: true, plain: true, show: (c, r) => holders(c, r.holders.filter(h => h.by !== "sourceAddress")) },
  { id: "addresses", title: "By addresses", text: true, plain: true, show: (c, r) => holders(c, r.holders.filter(h => h.by === "sourceAddress")) },
], "taken", true);
function holders(cell, all) { put(cell, all.length ? holder(all[0]) : "\u2013"); cls(cell, all.length ? "text mono" : "text dim"); tip(cell, ...all.map(holder)); }
const reasons = table($("t-reasons"), [
  { id: "name", title: "Reason", text: true, value: r => r.name, show: tagged },
  { id: "rate", title: "Now\u2215s", value: r => r.rate, show: (c, r) => { put(c, rateText(r.rate)); cls(c, !r.rate ? "dim" : r.paper ? "warm" : "hot"); } },
  { id: "total", title: "In all", value: r => r.total, show: text(r => big(r.total)) },
], "rate", true);
const talkers = table($("t-talkers"), [
  { id: "name", title: "Name", text: true, value: r => r.name, show: named },
  { id: "requests", title: "Requests", value: r => r.requests, show: (c, r) => { put(c, big(r.requests)); c.title = r.error ? "up to " + whole.format(r.error) + " more" : ""; } },
  { id: "part", title: "Of all", value: r => r.requests, show: (c, r) => put(c, share(r.part, 1)) },
  { id: "seats", title: "Seat-seconds", value: r => r.seatSeconds, show: text(r => rateText(r.seatSeconds), true) },
  { id: "wait", title: "Waited", value: r => r.queueWaitSeconds, show: text(r => seconds(r.queueWaitSeconds), true) },
  { id: "bytes", title: "Bytes", value: r => r.bytes, show: text(r => bytes(r.bytes)) },
  { id: "no", title: "Rejected", value: r => r.rejections, show: (c, r) => { put(c, big(r.rejections)); cls(c, r.rejections ? "hot" : "dim"); } },
  { id: "maybe", title: "Would be", value: r => r.wouldBeRejections, show: (c, r) => { put(c, big(r.wouldBeRejections)); cls(c, r.wouldBeRejections ? "warm" : "dim"); c.title = "rejected by limits that only count"; } },
  { id: "ctl", title: "", plain: true, show: limitButton },
], "requests", true);
function limitButton(cell, row) {
  const target = targetOf(row.by, row.name);
  if (!cell.firstChild) { const b = make("button", "plain", "Limit\u2026"); b.type = "button"; b.addEventListener("click", () => showCommand(b.target, b.who)); cell.append(b); }
  const b = cell.firstChild;
  b.hidden = !target; b.target = target; b.who = row.name;
}

// --- what limits a talker --------------------------------------------------------------------------------------------------
// An argument as a shell takes it.
const quote = text => /^[A-Za-z0-9_=:/.,@%+-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'";
// The flags of weir ctl that select a talker; null if it cannot be named.
function targetOf(by, name) {
  if (!name || name === "<none>" || name === "<unknown>" || name.endsWith("*") || /[\p{C}\p{Zl}\p{Zp}]/u.test(name)) return null;
  const flag = (of, value) => " " + quote("--" + of + "=" + value);
  const [, account] = /^system:serviceaccount:([^:]+:[^:]+)$/.exec(name) || [];
  const [, verb, resource] = /^(\S+) (.+)$/.exec(name) || [];
  switch (by) {
    case "user": return account ? flag("service-account", account) : flag("user", name);
    case "userAgent": return flag("user-agent", name);
    case "sourceAddress": return flag("source", name);
    case "namespace": return flag("namespace", name);
    case "resource": return verb ? flag("verb", verb) + flag("resource", resource) : null;
    default: return null;
  }
}
function showCommand(target, who) {
  $("command").hidden = false;
  put($("command-for"), who);
  // As they are: a shell reads them, and `targetOf` names nobody by characters that need to be escaped.
  $("command-limit").textContent = "weir ctl limit" + target + " --qps=10 --for=10m"; $("command-block").textContent = "weir ctl block" + target + " --for=10m";
  for (const which of ["limit", "block"]) put($("copy-" + which), "Copy");
  $("command").scrollIntoView({ block: "nearest" });
}
function copy(which) {
  const code = $("command-" + which), done = () => put($("copy-" + which), "Copied");
  // Without a clipboard, which a page has on the loopback and by https only, the text is selected.
  const select = () => { getSelection().selectAllChildren(code); put($("copy-" + which), "Selected"); };
  if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, select); else select();
}

// --- what is seen --------------------------------------------------------------------------------------------------------
function before(now) {
  for (let i = snaps.length - 2; i >= 0; i--) if (now.unixMs - snaps[i].unixMs >= RATE_OVER_MS) return snaps[i];
  return snaps.length > 1 ? snaps[0] : null;
}
function rates(now, then) {
  const time = then ? Math.max(now.unixMs - then.unixMs, 1) / 1000 : 1;
  return (a, b) => then ? Math.max(a - (b || 0), 0) / time : null;
}
// A quantile of what a histogram has more than before, in seconds; null if it has nothing more.
function quantile(now, then, part) {
  const before = then || { count: 0, buckets: [] }, added = now.count - before.count;
  if (added <= 0) return null;
  let below = 0, lower = 0;
  for (let i = 0; i < now.buckets.length; i++) {
    const upto = now.buckets[i][1] - (before.buckets[i] ? before.buckets[i][1] : 0);
    if (upto >= added * part) return lower + (now.buckets[i][0] - lower) * Math.min(1, (added * part - below) / Math.max(upto - below, 1e-9));
    below = upto; lower = now.buckets[i][0];
  }
  return lower;
}
// The time that 99 of 100 requests have waited: of those that left the queue, or of those in it.
const waitOf = (l, o) => Math.max((o && quantile(l.waits, o.waits, .99)) || 0, l.queue.waitedSeconds);
function live(now, then, rate, past) {
  const old = new Map(then ? then.levels.map(l => [l.name, l]) : []);
  return now.levels.map(l => {
    const o = old.get(l.name) || { rejected: {}, waits: { count: 0, seconds: 0, buckets: [] }, dispatched: 0 };
    const noTotal = sum(l.rejected), waited = l.waits.count - o.waits.count;
    const p99 = waitOf(l, then && old.get(l.name));
    const limit = l.currentLimit;
    return Object.assign({}, l, {
      key: l.name, noTotal, no: rate(noTotal, sum(o.rejected)), out: rate(l.dispatched, o.dispatched), p99,
      wait: then && waited > 0 ? (l.waits.seconds - o.waits.seconds) / waited : null,
      why: Object.entries(l.rejected).map(([k, v]) => k + ": " + whole.format(v)).join("\n"),
      borrowed: limit === null || limit === undefined ? 0 : limit - l.nominalLimit, fullness: limit ? l.seatsInUse / limit : 0,
      tag: l.quiescing ? "going" : l.kind === "Exempt" ? "exempt" : l.dryRun && !now.dryRun ? "dry run" : l.kind === "Reject" ? "no queue" : "",
      past: past && past.levels[l.name], paper: now.dryRun || l.dryRun,
    });
  });
}
// All that is drawn from; while it is frozen, as it was.
function moment() {
  const now = snaps[snaps.length - 1];
  return now ? { now, then: before(now), past: history } : null;
}
function draw() {
  const from = frozen || moment();
  if (!from) return;
  const { now, then, past } = from, rate = rates(now, then);
  const rows = live(now, then, rate, past);
  drawHead(now); drawHeadline(now.headline); drawAnswers(now, then, rate, rows, past); drawOwn(now, then, rate, past); drawTime(now, then, rate, rows, past);
  const wanted = $("filter").value.trim().toLowerCase(), busy = $("idle").getAttribute("aria-pressed") === "true";
  const shown = rows.filter(r => r.name.toLowerCase().includes(wanted) && (!busy || r.seatsInUse || r.waiting || r.out || r.no));
  put($("h-levels"), now.mode === "MaxInFlight" ? "Max in flight" : "Priority levels");
  put($("levels-note"), (shown.length < rows.length ? shown.length + " of " + rows.length : String(rows.length)) + (now.dryRun ? ", on paper: who would wait or be rejected goes on" : ""));
  levels.title("no", now.dryRun ? "Would-be rejected\u2215s" : "Rejected\u2215s"); levels.title("total", now.dryRun ? "Would-be in all" : "Rejected in all");
  levels.draw(shown);
  $("s-limits").hidden = !now.rateLimits.length;
  const oldLimits = then ? then.rateLimits : [];
  limits.draw(now.rateLimits.map((l, i) => { const o = oldLimits[i] || {}; return Object.assign({}, l, { key: i + l.name, tag: l.dryRun ? "dry run" : "", pass: rate(l.passed, o.passed), late: rate(l.delayed, o.delayed), no: rate(l.rejected, o.rejected) }); }));
  const held = now.upstream.places || [];
  $("s-places").hidden = !held.length;
  places.draw(held.map(p => Object.assign({ key: p.kind, name: p.kind }, p)));
  const why = (counts, old, paper) => Object.entries(counts).filter(([, n]) => n).map(([name, total]) => ({ key: name + (paper ? "?" : ""), name, tag: paper ? "would be" : "", paper, total, rate: rate(total, old && old[name]) }));
  const all = why(now.rejections, then && then.rejections, false).concat(why(now.wouldBeRejections, then && then.wouldBeRejections, true));
  $("no-reasons").hidden = all.length > 0; $("t-reasons").hidden = !all.length;
  reasons.draw(all);
  drawAlarms(now); drawLevers(now); drawTalkers(now); drawObjects(now); drawUpstream(now, rate, then); drawTotal(now, past);
}
function drawHead(now) {
  const r = now.readiness, good = r.ready === true;
  put($("ready"), r.shuttingDown ? "shutting down" : good ? "ready" : r.loopFailure ? "the upstream leads back to this weir" : r.frontProxyFailure ? "front-proxy certificate not accepted" : r.ready === false ? "API server does not answer" : "waiting for the API server");
  $("paper").hidden = !now.dryRun;
  const dot = { calm: "good", warning: "warn", critical: "hurt" }[now.headline.severity];
  cls($("ready"), "state " + (r.ready === false ? "bad" : good ? dot || "" : ""));
  const view = now.view, one = view && view.chosen !== "all";
  put($("facts"), (one ? "replica " + view.chosen + ", " : view ? counted(now).length + " of " + view.replicas.length + " replicas, " : "") + (now.host ? "on " + now.host + ", " : "") + (now.upstream.address ? "in front of " + now.upstream.address + ", " : "") + "version " + now.version + ", up " + span(now.uptimeSeconds));
  const title = one ? "weir: " + view.chosen : now.host ? "weir on " + now.host : "weir";
  if (document.title !== title) document.title = title;
  put($("clock"), clock(now.unixMs));
  drawReplicas(view);
}
function drawHeadline(h) {
  cls($("now"), "now " + h.severity);
  put($("now-text"), (h.replica ? h.replica + ": " : "") + h.text);
  put($("now-detail"), h.detail); $("now-detail").hidden = !h.detail;
  put($("now-also"), "Also: " + h.also.join("; ")); $("now-also").hidden = !h.also.length;
}
// Those whose totals are in the snapshot.
const counted = s => s.view ? s.view.replicas.filter(r => r.counted).map(r => r.name) : [];
const members = s => s.view ? s.view.chosen + "\0" + counted(s).join("\0") : "";
const missing = r => r.name + (r.ageSeconds === null ? " has sent nothing" : " has sent nothing for " + span(r.ageSeconds)) + (r.failure ? " (" + r.failure + ")" : "");
function drawReplicas(view) {
  $("replicas").hidden = !view;
  if (!view) return;
  choices($("replica"), ["all"].concat(view.replicas.map(r => r.name)), chosen, n => n === "all" ? "All replicas" : n + (view.replicas.some(r => r.name === n && !r.counted) ? " (missing)" : ""), pick);
  const gone = view.replicas.filter(r => !r.counted && (view.chosen === "all" || view.chosen === r.name));
  $("missing").hidden = !gone.length;
  put($("missing"), gone.map(missing).join("; "));
}
function pick(name) {
  if (name === chosen) return;
  chosen = name; snaps = [];
  if (frozen) $("freeze").click();
  listen();
}
// Of a service account the name; where it is stands beside.
function shortName(name) {
  const [, namespace, account] = /^system:serviceaccount:([^:]+):(.+)$/.exec(name) || [];
  return account ? [account, "service account in " + namespace + ". "] : [name || "(none)", ""];
}
// Rejections that an operator wants.
const LEVERS = ["blocked", "lever-limit"];
let rejecting = false;
const fastest = (counts, old, rate) => Object.entries(counts).map(([k, v]) => [k, rate(v, old && old[k])]).filter(([, v]) => v > 0).sort((a, b) => b[1] - a[1]).map(([k, v]) => k + " " + rateText(v)).join(", ");
function drawAnswers(now, then, rate, rows, past) {
  const total = sum(now.rejections), no = rate(total, then && sum(then.rejections));
  const paper = sum(now.wouldBeRejections), maybe = rate(paper, then && sum(then.wouldBeRejections));
  const n = $("no-now");
  if (!n.firstElementChild) { n.textContent = ""; n.append(make("span"), make("small", "", "a second")); }
  put(n.firstElementChild, rateText(no));
  const wanted = LEVERS.reduce((all, name) => all + (rate(now.rejections[name] || 0, then && then.rejections[name]) || 0), 0);
  cls(n, "big " + (no - wanted > 1e-6 ? "hot" : no > 0 ? "warm" : "calm"));
  put($("no-why"), no > 0 ? fastest(now.rejections, then && then.rejections, rate) : total ? big(total) + " since weir began" : "none since weir began");
  $("no-maybe").hidden = !now.dryRun && !paper;
  cls($("no-maybe"), "sub" + (maybe > 0 ? " warm" : ""));
  put($("no-maybe"), "Would be: " + (maybe > 0 ? rateText(maybe) + " a second (" + fastest(now.wouldBeRejections, then.wouldBeRejections, rate) + ")" : paper ? "none now, " + big(paper) + " since weir began" : "none since weir began")
    + (now.wouldBeRejectedUsers ? ". It would break " + now.wouldBeRejectedUsers + (now.wouldBeRejectedUsers === 1 ? " user: " : " users: ") + now.wouldBeRejected.map(u => u.key + " (" + big(u.rejections) + ")").join(", ") + (now.wouldBeRejectedUsers > now.wouldBeRejected.length ? ", \u2026" : "") : ""));
  // In a dry run levels' rejections are on paper, and the others are few.
  const onPaper = past && now.dryRun ? Object.values(past.levels).reduce((all, l) => all.map((v, i) => v + (l.rejected[i] || 0)), past.unixMs.map(() => 0)) : [];
  const before = past ? past.rejected : [];
  const real = before.concat([no || 0]).slice(-ROWS), would = now.dryRun ? onPaper.concat([maybe || 0]).slice(-ROWS) : [];
  const most = nice(Math.max(greatest(real), greatest(would)));
  shape($("no-plot"), "maybeline").setAttribute("d", would.some(v => v > 0) ? path(would, most, 34, true) : "");
  mini($("no-plot"), real, most, v => rateText(v) + "\u2215s", true, "noline");
  const waiting = rows.reduce((all, l) => all + l.waiting, 0), slowest = rows.reduce((a, b) => b.p99 > (a ? a.p99 : 0) ? b : a, null), w = $("wait-now");
  put(w, big(waiting));
  cls(w, "big " + (!waiting || now.dryRun ? "calm" : slowest && slowest.p99 >= .1 ? "warm" : ""));
  put($("wait-what"), now.dryRun ? "they would wait: a dry run" : slowest && slowest.p99 ? "99 of 100 waited at most " + seconds(slowest.p99) + " in " + slowest.name : "no request has waited lately");
  const queued = value(past, "waiting").concat([waiting]).slice(-ROWS);
  mini($("wait-mini"), queued, nice(greatest(queued)), big, true, "maybeline");
  const late = then && quantile(now.upstream.latency, then.upstream.latency, .99), half = then && quantile(now.upstream.latency, then.upstream.latency, .5);
  const failed = rate(upstreamErrors(now), then && upstreamErrors(then)), u = $("up-now");
  put(u, late === null ? NONE : seconds(late));
  cls(u, "big " + (failed > 0 ? "hot" : late === null ? "calm" : ""));
  put($("up-what"), now.readiness.upstreamFailure || (late === null ? "no response lately" : "99 of 100 of its responses; half within " + seconds(half)) + "; " + rateText(failed) + " errors a second");
  const times = value(past, "upstreamMost").concat([late || 0]).slice(-ROWS);
  mini($("up-mini"), times, nice(greatest(times)), seconds, false, "line2");
  if (then && (no > 0) !== rejecting) { rejecting = no > 0; say(rejecting ? "Requests are being rejected" : "No more rejections"); }
  const full = rows.filter(r => r.currentLimit && (r.seatsInUse || r.waiting)).sort((a, b) => (b.fullness >= 1) - (a.fullness >= 1) || b.waiting - a.waiting || b.fullness - a.fullness)[0];
  put($("full"), full ? full.name : "all idle"); tip($("full"), full ? full.name : "");
  cls($("full"), "big name" + (full ? "" : " calm"));
  put($("full-what"), full ? full.seatsInUse + " of " + full.currentLimit + " seats" + (full.waiting ? ", " + big(full.waiting) + (now.dryRun ? " would wait" : " wait") : "") + (full.borrowed > 0 ? ", " + full.borrowed + " borrowed" : full.borrowed < 0 ? ", " + -full.borrowed + " lent" : "") : "no seat is taken");
  if (full) fillBar($("full-bar"), full.seatsInUse, full.currentLimit, full.nominalLimit, full.no > 0 && !now.dryRun); else $("full-bar").textContent = "";
  const list = by => now.talkers.filter(t => t.by === by).sort((a, b) => a.windowSeconds - b.windowSeconds)[0];
  const users = list("user"), agents = list("userAgent");
  const first = users && users.rows.reduce((a, b) => b.requests > (a ? a.requests : 0) ? b : a, null);
  const [short, where] = first ? shortName(first.name) : ["nobody", ""];
  put($("who"), short); tip($("who"), first ? first.name : "");
  cls($("who"), "big name" + (first ? short.length > 22 ? " long" : "" : " calm"));
  put($("who-what"), first ? where + big(first.requests) + " requests in a minute, " + Math.round(first.requests / Math.max(users.requests, 1) * 100) + " % of all" + (first.rejections ? ", " + big(first.rejections) + " rejected" : "") : "no requests in the last minute");
  const agent = agents && agents.rows.reduce((a, b) => b.requests > (a ? a.requests : 0) ? b : a, null);
  put($("who-agent"), agent ? "Busiest agent: " + agent.name : ""); tip($("who-agent"), agent ? agent.name : "");
}
const upstreamErrors = s => s.upstream.errors + sum(s.upstream.failures);
// A column of the history.
const value = (past, name) => past && past.values[name] || [];
function drawOwn(now, then, rate, past) {
  const p = now.process, cpu = rate(p.cpuSeconds, then && then.process.cpuSeconds), n = $("own-now");
  const ofLimit = p.memoryLimitBytes ? " of " + bytes(p.memoryLimitBytes) : "";
  if (!n.firstElementChild) { n.textContent = ""; n.append(make("span"), make("small")); }
  put(n.firstElementChild, p.memoryBytes ? bytes(p.memoryBytes) : NONE); put(n.lastElementChild, ofLimit || "no limit");
  cls(n, "big " + (p.memoryLimitBytes && p.memoryBytes >= p.memoryLimitBytes ? "hot" : p.memoryLimitBytes && p.memoryBytes >= p.memoryLimitBytes * .8 ? "warm" : ""));
  put($("own-what"), (cpu === null ? NONE : cpu.toFixed(2)) + (p.cpus ? " of " + p.cpus : "") + (p.cpus === 1 ? " processor" : " processors") + ", greatest " + Math.max(greatest(value(past, "cpu")), cpu || 0).toFixed(2));
  const memory = value(past, "memory").concat([p.memoryBytes]).slice(-ROWS), most = Math.max(p.memoryLimitBytes, greatest(memory), 1);
  mini($("own-mini"), memory, most, bytes, true, "seats");
}
function drawTime(now, then, rate, rows, past) {
  const c = byClass(now.requests.byCode), o = then ? byClass(then.requests.byCode) : {};
  const current = CLASSES.map(k => rate(c[k], o[k]));
  const columns = CLASSES.map((k, i) => (past ? past.codes[k] || [] : []).concat([current[i] || 0]).slice(-ROWS));
  const length = columns[0].length, stacked = []; let base = new Array(length).fill(0);
  for (const column of columns) { const below = base; base = base.map((v, i) => v + (column[i] || 0)); stacked.push([base, below]); }
  const most = nice(greatest(base)) || 1;
  stacked.forEach(([above, below], i) => shape($("plot"), "area" + CLASSES[i][0]).setAttribute("d", columns[i].some(v => v > 0) ? band(above, below, most, 120) : ""));
  axis($("plot"), most, rateText);
  const key = $("codes");
  if (!key.firstChild) for (const k of CLASSES) { const s = make("span", "c" + k[0]); s.append(make("em")); key.append(s); }
  const words = { "2xx": "fine", "3xx": "redirected", "4xx": "rejected or wrong", "5xx": "failed" };
  CLASSES.forEach((k, i) => put(key.children[i].firstChild, rateText(current[i]) + " " + k + " " + words[k]));

  const waiting = value(past, "waiting").concat([rows.reduce((all, l) => all + l.waiting, 0)]).slice(-ROWS);
  const waits = value(past, "wait").concat([greatest(rows.map(l => l.p99))]).slice(-ROWS);
  const mostWaiting = nice(greatest(waiting)), mostWait = nice(greatest(waits));
  shape($("wait-plot"), "area4").setAttribute("d", waiting.some(v => v > 0) ? path(waiting, mostWaiting, 70, true) : "");
  shape($("wait-plot"), "line5").setAttribute("d", line(waits, mostWait, 70));
  axis($("wait-plot"), mostWaiting, rateText); axis($("wait-plot"), mostWait, seconds, "right");

  const late = value(past, "upstreamMost").concat([then && quantile(now.upstream.latency, then.upstream.latency, .99) || 0]).slice(-ROWS);
  const half = value(past, "upstreamHalf").concat([then && quantile(now.upstream.latency, then.upstream.latency, .5) || 0]).slice(-ROWS);
  const errors = value(past, "upstreamErrors").concat([rate(upstreamErrors(now), then && upstreamErrors(then)) || 0]).slice(-ROWS);
  const mostLate = nice(greatest(late)), mostErrors = nice(greatest(errors));
  shape($("up-plot"), "area5").setAttribute("d", errors.some(v => v > 0) ? path(errors, mostErrors, 70, true) : "");
  shape($("up-plot"), "line2").setAttribute("d", line(late, mostLate, 70));
  shape($("up-plot"), "line3").setAttribute("d", line(half, mostLate, 70));
  axis($("up-plot"), mostLate, seconds); axis($("up-plot"), mostErrors, rateText, "right");

  const every = (past ? past.everySeconds : 5) * 1000, from = now.unixMs - (ROWS - 1) * every;
  [0, 1, 2, 3].forEach(n => put($("axis").children[n], minute(from + (now.unixMs - from) * n / 3)));
  drawMarks(now, from);
}
// What has changed, on all plots, and the last of it below them.
const MARKS_LISTED = 8;
function drawMarks(now, from) {
  const all = now.marks.filter(m => m.unixMs >= from).map((m, i) => Object.assign({ n: i + 1, at: Math.min(1, (m.unixMs - from) / (now.unixMs - from)) }, m));
  for (const id of ["plot", "wait-plot", "up-plot"]) {
    const height = id === "plot" ? 120 : 70;
    shape($(id), "grid").setAttribute("d", "M0 " + (height - .5) + "h180M0 " + height / 2 + "h180M0 2h180M60 0v" + height + "M120 0v" + height);
    shape($(id), "mark").setAttribute("d", all.map(m => "M" + (m.at * 180).toFixed(2) + " 0v" + height).join(""));
  }
  const flags = $("flags"), list = $("marks"), listed = all.slice(-MARKS_LISTED).reverse();
  all.forEach((m, i) => {
    const f = flags.children[i] || flags.appendChild(make("span"));
    put(f, m.n); cls(f, m.kind); f.style.left = (m.at * 100).toFixed(2) + "%";
    tip(f, clock(m.unixMs) + " " + m.text);
  });
  while (flags.children.length > all.length) flags.lastChild.remove();
  listed.forEach((m, i) => {
    let li = list.children[i];
    if (!li) { li = make("li"); li.append(make("time"), make("span")); list.append(li); }
    li.dataset.n = m.n; cls(li, m.kind);
    put(li.firstChild, clock(m.unixMs)); put(li.lastChild, (m.replica ? m.replica + ": " : "") + m.text);
  });
  while (list.children.length > listed.length) list.lastChild.remove();
  put($("marks-note"), all.length > listed.length ? "the last " + listed.length + " of " + all.length + " changes are listed below" : all.length ? "changes are marked, and listed below" : "no change in this time");
}
let by = null, over = null;
function drawTalkers(now) {
  const names = [...new Set(now.talkers.map(t => t.by))], windows = [...new Set(now.talkers.map(t => t.windowSeconds))].sort((a, b) => a - b);
  if (!names.includes(by)) by = names[0] || null;
  if (!windows.includes(over)) over = windows[0] || null;
  const words = { user: "User", userAgent: "Agent", sourceAddress: "Address", namespace: "Namespace", resource: "Verb and resource", flow: "Flow", tag: "Tag" };
  choices($("by"), names, by, n => words[n] || n, n => { by = n; });
  choices($("window"), windows, over, s => s / 60 + " min", n => { over = n; });
  const list = now.talkers.find(t => t.by === by && t.windowSeconds === over), rows = list ? list.rows : [];
  $("no-talkers").hidden = rows.length > 0; $("t-talkers").hidden = !rows.length;
  talkers.draw(rows.map(r => Object.assign({ key: by + "\0" + over + "\0" + r.name, by, part: r.requests / Math.max(list.requests, 1) }, r)));
}
function choices(group, all, chosen, title, choose) {
  group.hidden = all.length < 2;
  all.forEach((value, i) => {
    let b = group.children[i];
    if (!b) { b = make("button"); b.type = "button"; b.addEventListener("click", () => { b.choose(); draw(); }); group.append(b); }
    b.choose = () => choose(value);
    put(b, title(value)); b.setAttribute("aria-pressed", String(value === chosen));
  });
  while (group.children.length > all.length) group.lastChild.remove();
}
function drawObjects(now) {
  const f = now.flowcontrol || { cluster: "", objects: [] };
  $("s-objects").hidden = !f.objects.length;
  put($("objects-note"), f.failure ? "The cluster's are not up to date: " + f.failure : CLUSTER[f.cluster] || "");
  objects.draw(f.objects.map(o => ({ key: o.kind + "\0" + o.name, name: o.name, tag: o.kind === "FlowSchema" ? "flow schema" : "priority level", origin: o.origin })));
}
function replicasText(r) {
  const count = 1 + r.others.filter(o => o.state === "live").length;
  const shares = r.pools.map(p => whole.format(p.share) + " of " + whole.format(p.total) + " " + p.name);
  const others = r.others.map(o => o.name + ": " + o.state + ", " + o.held.map(n => whole.format(n)).join(" + "));
  return [count + " live", r.name + ": " + r.state + ", " + shares.join(", "), ...others, r.failure || ""].filter(Boolean).join("; ");
}
function drawAlarms(now) {
  const all = now.alarms || [], list = $("alarms");
  $("s-alarms").hidden = !all.length;
  all.forEach((a, i) => {
    if (!list.children[i * 2]) list.append(make("dt"), make("dd"));
    put(list.children[i * 2], a.severity + ": " + a.name + (a.replica ? " of " + a.replica : ""));
    put(list.children[i * 2 + 1], a.text + ", since " + clock(a.sinceUnixMs) + ". " + a.action);
    cls(list.children[i * 2 + 1], a.severity === "critical" ? "bad" : "");
  });
  while (list.children.length > all.length * 2) list.lastChild.remove();
}
function drawTotal(now, past) {
  const { own, server } = now.seats, total = now.total;
  $("total-card").hidden = !own && server === null;
  const n = $("total-now");
  if (!n.firstElementChild) { n.textContent = ""; n.append(make("span"), make("small")); }
  put(n.firstElementChild, own ? whole.format(own) : "no limit"); put(n.lastElementChild, server === null ? "" : "of " + whole.format(server));
  cls(n, "big" + (server !== null && (!own || own > server) ? " warm" : ""));
  const ms = v => v === null ? NONE : whole.format(v);
  put($("total-why"), (server === null ? "the API server does not say its own; " : "") + (total ? "found: a small read takes " + ms(total.readMs) + " of " + ms(total.targetMs) + " ms; " + total.reason : "a number of the configuration or of a lever"));
  const found = (past && past.total || []).map(v => v || own).concat([own]).slice(-ROWS), most = Math.max(1, server || 0, greatest(found));
  mini($("total-plot"), found, most, whole.format, true, "seats");
  shape($("total-plot"), "cap").setAttribute("d", server ? "M0 " + (34 - server / most * 32).toFixed(1) + "h180" : "");
}
function drawLevers(now) {
  const all = now.levers || [], list = $("levers");
  $("s-levers").hidden = !all.length;
  all.forEach((l, i) => {
    if (!list.children[i * 2]) list.append(make("dt"), make("dd"));
    const limits = [l.qps && whole.format(l.qps) + "/s", l.inFlightLimit && whole.format(l.inFlightLimit) + " at a time"].filter(Boolean).join(", ");
    const left = Math.ceil(l.remainingSeconds), time = (left >= 60 ? Math.floor(left / 60) + " min " : "") + left % 60 + " s";
    put(list.children[i * 2], l.id + (l.replica ? " of " + l.replica : "") + ": " + l.action + (limits ? " to " + limits : l.value ? " " + l.value : ""));
    const counts = l.value ? "" : whole.format(l.rejected) + " rejected" + (l.spared ? ", " + whole.format(l.spared) + " spared" : "") + ". ";
    put(list.children[i * 2 + 1], [l.target, l.isForced && "forced", "for another " + time].filter(Boolean).join(", ") + ". " + counts + "By " + l.pulledBy + (l.reason ? ": " + l.reason : ""));
    cls(list.children[i * 2 + 1], "bad");
  });
  while (list.children.length > all.length * 2) list.lastChild.remove();
}
const LOST = { "audit-log": "events of the audit log", connections: "connections beyond the limit", log: "lines of the log", memory: "requests and connections, for memory", record: "requests of a record" };
function drawUpstream(now, rate, then) {
  const u = now.upstream, list = $("upstream"), fails = sum(u.failures), day = 86400;
  const ends = now.expiries.map(e => [e, e.unixSeconds - now.unixMs / 1000]);
  const end = ([e, left]) => (e.replica ? e.replica + ": " : "") + e.name + (left > 0 ? " in " + span(left) : " has ended");
  const lost = Object.entries(now.losses).filter(([, n]) => n);
  const rows = [
    ["API server", now.readiness.upstreamFailure || (now.readiness.ready === null ? "not asked yet" : "answers"), !!now.readiness.upstreamFailure],
    ["API servers", (u.servers || []).map(s => s.address + ": " + (s.refused ? "refused: " + s.why : (s.healthy ? "" : "not used, " + s.why + ", ") + whole.format(s.inFlight) + " + " + whole.format(s.longRunning) + " long-running")).join("; ") || "none", (u.servers || []).some(s => !s.healthy)],
    ["Replicas", now.replicas ? replicasText(now.replicas) : "none: this weir uses all of the totals", !!now.replicas && !!now.replicas.failure],
    ["Configuration", now.config.errors.length ? "refused at " + clock(now.config.lastFailureUnixMs) + ", the one before stays in force: " + now.config.errors.join("; ") : "number " + now.config.generation + ", read at " + clock(now.config.lastSuccessUnixMs) + now.config.needsRestart.map(line => "; " + line).join(""), now.config.errors.length > 0],
    ["Connections to it", Object.entries(u.connections).filter(([, n]) => n).map(([way, n]) => n + " " + way).join(", ") || "none"],
    ["Certificates and credentials end", ends.slice(0, 3).map(end).join("; ") + (ends.length > 3 ? "; " + (ends.length - 3) + " later" : "") || "none is known", ends.some(([, left]) => left < day)],
    ["Lost since the start", lost.map(([name, n]) => big(n) + " " + (LOST[name] || name)).join("; ") || "nothing", lost.length > 0],
    ["Requests without an answer", fails ? big(fails) + " (" + rateText(rate(fails, then && sum(then.upstream.failures))) + " a second)" : "none"],
    ["The last of them", u.lastFailure ? clock(u.lastFailure.unixMs) + ": " + u.lastFailure.why : "none", !!u.lastFailure && now.unixMs - u.lastFailure.unixMs < 60000],
    ["In flight", whole.format(now.requests.inFlight) + " requests, " + whole.format(now.requests.watches) + " watches"],
    ["Clients' connections", whole.format(now.connections.open) + " of at most " + whole.format(now.connections.most)],
    ["Gone before an answer", big(now.requests.aborted) + " requests"],
    ["Delayed rejections", now.holds.now ? whole.format(now.holds.now) + ", " + whole.format(now.holds.flows) + (now.holds.flows === 1 ? " flow" : " flows") : "none now" + (now.holds.ended ? ", " + big(now.holds.ended) + " before" : "") + (now.holds.pacedSeconds > 1 ? "; Retry-After is paced to " + Math.ceil(now.holds.pacedSeconds) + " s" : "")],
  ];
  rows.forEach(([name, value, bad], i) => {
    if (!list.children[i * 2]) list.append(make("dt"), make("dd"));
    put(list.children[i * 2], name); put(list.children[i * 2 + 1], value); cls(list.children[i * 2 + 1], bad ? "bad" : "");
  });
}

// --- what is heard -------------------------------------------------------------------------------------------------------
function say(what) { put($("said"), what); }
// What a connection begins with: another weir may be at its other end, whose totals do not go on from those before.
// Levels are named by operators, and no name is a member of an object without a prototype.
function begin(past) { past.levels = Object.assign(Object.create(null), past.levels); history = past; snaps = []; rowFrom = null; }
function add(s) {
  // Totals of other replicas are no growth.
  if (snaps.length && members(s) !== members(snaps[snaps.length - 1])) { snaps = []; rowFrom = null; }
  snaps.push(s);
  if (snaps.length > 12) snaps.shift();
  if (!rowFrom) rowFrom = s;
  const every = history ? history.everySeconds * 1000 : 5000;
  if (s.unixMs - rowFrom.unixMs < every - 200) return;
  // A row as weir's own.
  history = history || { everySeconds: 5, unixMs: [], codes: {}, rejected: [], total: [], values: {}, levels: Object.create(null) };
  const rate = rates(s, rowFrom), now = byClass(s.requests.byCode), then = byClass(rowFrom.requests.byCode), length = history.unixMs.length;
  const push = (column, value) => { while (column.length < length) column.push(0); column.push(value); if (column.length > ROWS) column.shift(); };
  for (const k of CLASSES) push(history.codes[k] = history.codes[k] || [], rate(now[k], then[k]));
  push(history.rejected, rate(sum(s.rejections), sum(rowFrom.rejections)));
  push(history.total = history.total || [], s.total ? s.total.seats : 0);
  const old = new Map(rowFrom.levels.map(l => [l.name, l])), latency = part => quantile(s.upstream.latency, rowFrom.upstream.latency, part) || 0;
  const values = {
    cpu: rate(s.process.cpuSeconds, rowFrom.process.cpuSeconds), memory: s.process.memoryBytes, serverSeats: s.seats.server || 0,
    upstreamErrors: rate(upstreamErrors(s), upstreamErrors(rowFrom)), upstreamHalf: latency(.5), upstreamMost: latency(.99),
    wait: greatest(s.levels.map(l => waitOf(l, old.get(l.name)))), waiting: s.levels.reduce((all, l) => all + l.waiting, 0),
  };
  for (const [name, v] of Object.entries(values)) push(history.values[name] = history.values[name] || [], v);
  for (const l of s.levels) {
    const h = history.levels[l.name] = history.levels[l.name] || { limit: [], seats: [], waiting: [], rejected: [] }, o = old.get(l.name);
    push(h.limit, l.currentLimit || 0); push(h.seats, l.seatsInUse); push(h.waiting, l.waiting); push(h.rejected, rate(sum(l.rejected), o ? sum(o.rejected) : 0));
  }
  push(history.unixMs, s.unixMs);
  rowFrom = s;
}
function heard() {
  lastHeard = performance.now();
  if (lostSince !== null) { lostSince = null; $("lost").hidden = true; document.body.classList.remove("lost"); say("The connection to weir is back"); }
}
function lost() {
  if (lostSince === null) { lostSince = Date.now(); say("The connection to weir is lost"); }
  $("lost").hidden = false; document.body.classList.add("lost");
  put($("since"), "since " + clock(lostSince) + ". Trying again. What is shown is from before.");
}
function listen() {
  if (source) source.close();
  source = new EventSource("status/events?replicas=" + encodeURIComponent(chosen));
  source.addEventListener("history", e => { heard(); begin(JSON.parse(e.data)); });
  source.addEventListener("snapshot", e => { heard(); add(JSON.parse(e.data)); draw(); });
  // A browser that was told no does not try again by itself.
  source.addEventListener("error", () => { lost(); if (source.readyState === EventSource.CLOSED) setTimeout(listen, 2000); });
  lastHeard = performance.now();
}
// A connection that died in silence: nothing for five seconds.
setInterval(() => { if (performance.now() - lastHeard > 5000) { lost(); listen(); } }, 1000);
$("freeze").addEventListener("click", e => { frozen = frozen ? null : structuredClone(moment()); e.currentTarget.setAttribute("aria-pressed", String(!!frozen)); put(e.currentTarget, frozen ? "Frozen" : "Freeze"); draw(); });
$("idle").addEventListener("click", e => { const on = e.currentTarget.getAttribute("aria-pressed") !== "true"; e.currentTarget.setAttribute("aria-pressed", String(on)); draw(); });
$("filter").addEventListener("input", draw);
for (const which of ["limit", "block"]) $("copy-" + which).addEventListener("click", () => copy(which));
$("command-close").addEventListener("click", () => { $("command").hidden = true; });
listen();
