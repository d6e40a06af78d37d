// The living part of a report. It reads the numbers from the page (#data), draws them with Bokeh
// and answers to the controls. Whatever comes from the user's data is put on the page as text,
// never as HTML.
"use strict";
(() => {
  const byId = id => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const floats = text => new Float32Array(bytes(text).buffer);
  const whole = text => (data.wide ? new Uint16Array(bytes(text).buffer) : bytes(text));
  const n = data.names.length;
  const NONE = data.wide ? 65535 : 255; // rows that were left out
  const axes = floats(data.axis_values);
  const confidence = floats(data.confidence);
  const samples = whole(data.samples);
  const partitions = data.partitions.map(p => whole(p.labels));
  const nSamples = data.sample_clusters.length;
  const state = { across: 0, up: Math.min(1, data.axes.length - 1), partition: 0, sample: -1,
    chosen: [], timer: 0 };

  // -- numbers -------------------------------------------------------------------------------------

  const axis = a => axes.subarray(a * n, (a + 1) * n);
  const sampleLabels = s => samples.subarray(s * n, (s + 1) * n);
  const shownLabels = () =>
    state.sample >= 0 ? sampleLabels(state.sample) : partitions[state.partition];

  /** The share of samples in which each row is with row i. */
  function together(i) {
    const p = new Float64Array(n);
    for (let s = 0; s < nSamples; s++) {
      const c = sampleLabels(s);
      if (c[i] !== NONE) for (let j = 0; j < n; j++) p[j] += c[j] === c[i];
    }
    return p.map(x => x / Math.max(nSamples, 1));
  }

  const percent = p =>
    p > 0 && p < 0.01 ? "under 1%" : p > 0.99 && p < 1 ? "over 99%" : `${Math.round(100 * p)}%`;
  const number = x => (Number.isNaN(x) ? "missing" : String(Number(x.toPrecision(4))));
  const shownValue = (a, i) => {
    const x = axis(a)[i], levels = data.axes[a].levels;
    return levels && !Number.isNaN(x) ? levels[x] : number(x);
  };
  const rowName = i =>
    data.names[i] === String(data.rows[i]) ? `row ${data.rows[i]}`
      : `row ${data.rows[i]} (${data.names[i]})`;
  const clusters = k => `${k} cluster${k === 1 ? "" : "s"}`;

  // -- colours -------------------------------------------------------------------------------------

  const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark";
  const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colourOf = k => {
    if (k === NONE) return ink("--soft");
    const colour = data.palette[k % data.palette.length];
    return colour === "#000000" && isDark() ? "#ffffff" : colour;
  };
  const markerOf = k => (k === NONE ? "x"
    : data.markers[Math.floor(k / data.palette.length) % data.markers.length]);
  const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74",
    "#c3b369", "#e1cc55", "#fee838"].map(c => [1, 3, 5].map(i => parseInt(c.slice(i, i + 2), 16)));
  function shade(p) {
    const t = Math.min(Math.max(p, 0), 1) * (CIVIDIS.length - 1), i = Math.min(Math.floor(t), 8);
    const mixed = CIVIDIS[i].map((v, c) => Math.round(v + (t - i) * (CIVIDIS[i + 1][c] - v)));
    return `rgb(${mixed.join(",")})`;
  }

  // -- the picture ---------------------------------------------------------------------------------

  Bokeh.logger.set_level("warn");
  const source = new Bokeh.ColumnDataSource({ data: { x: [], y: [], colour: [], edge: [],
    marker: [], alpha: [], width: [], edge_alpha: [] } });
  const known = new Set(data.known);
  const size = Math.min(12, Math.max(5, 200 / Math.sqrt(n)));
  const hover = new Bokeh.HoverTool({ tooltips: null, callback: showTip });
  const lasso = new Bokeh.LassoSelectTool();
  const figure = Bokeh.Plotting.figure({
    height: 430, sizing_mode: "stretch_width", toolbar_location: "above", output_backend: "canvas",
    tools: [hover, new Bokeh.TapTool(), lasso, new Bokeh.BoxSelectTool(), new Bokeh.PanTool(),
      new Bokeh.WheelZoomTool(), new Bokeh.ResetTool(), new Bokeh.SaveTool()],
    x_range: new Bokeh.DataRange1d(), y_range: new Bokeh.DataRange1d(),
  });
  figure.toolbar.logo = null;
  figure.toolbar.active_drag = lasso;
  figure.min_border_right = 12;
  figure.scatter({ field: "x" }, { field: "y" }, { source, size, marker: { field: "marker" },
    fill_color: { field: "colour" }, line_color: { field: "edge" }, line_width: { field: "width" },
    fill_alpha: { field: "alpha" }, line_alpha: { field: "edge_alpha" },
    selection_line_width: 3.5, selection_line_alpha: 1, selection_fill_alpha: 1,
    nonselection_fill_alpha: { field: "alpha" }, nonselection_line_alpha: { field: "edge_alpha" } });
  hover.renderers = figure.renderers;
  const [xAxis] = figure.below, [yAxis] = figure.left;

  function scheme() {
    const [strong, soft, line] = [ink("--ink"), ink("--soft"), ink("--line")];
    figure.background_fill_color = figure.border_fill_color = null;
    figure.outline_line_color = line;
    figure.xgrid.grid_line_color = figure.ygrid.grid_line_color = line;
    for (const one of [xAxis, yAxis]) {
      one.axis_label_text_color = one.major_label_text_color = strong;
      one.axis_line_color = one.major_tick_line_color = one.minor_tick_line_color = soft;
      one.axis_label_text_font_style = "normal";
    }
  }

  // Bokeh takes text between dollars or brackets for mathematics.
  const literal = text => text.replace(/[$\\]/g, "$&\u200b");
  const short = text => (text.length > 60 ? `${text.slice(0, 57)}...` : text);

  function nameAxis(one, a) {
    const { name, levels } = data.axes[a];
    one.axis_label = literal(short(name));
    if (levels) {
      one.ticker = new Bokeh.FixedTicker({ ticks: levels.map((_, i) => i) });
      one.major_label_overrides =
        Object.fromEntries(levels.map((level, i) => [i, literal(short(level))]));
    } else {
      one.ticker = new Bokeh.BasicTicker();
      one.major_label_overrides = {};
    }
  }

  // Levels are drawn a little apart, so that equal points do not hide each other.
  const jitter = i => 0.5 * (((i * 0.618034) % 1) - 0.5);
  const place = a => Array.from(axis(a), (x, i) =>
    (data.axes[a].levels ? x + jitter(i + 17 * a) : x));

  function draw() {
    const labels = shownLabels();
    const one = state.chosen.length === 1 ? state.chosen[0] : -1;
    const p = one >= 0 ? together(one) : null;
    const edge = ink("--ink");
    const all = Array.from({ length: n }, (_, i) => i);
    const plain = state.sample < 0 && state.partition === 0 && !p;
    const alpha = all.map(i => (plain ? 0.25 + 0.7 * (confidence[i] || 0) : 0.9));
    source.data = {
      x: place(state.across), y: place(state.up),
      colour: all.map(i => (p ? shade(p[i]) : colourOf(labels[i]))),
      edge: all.map(() => edge),
      marker: all.map(i => markerOf(labels[i])),
      alpha,
      width: all.map(i => (known.has(i) ? 2.5 : 0.6)),
      edge_alpha: all.map(i => (known.has(i) ? 1 : alpha[i])),
    };
    source.selected.indices = state.chosen;
    nameAxis(xAxis, state.across);
    nameAxis(yAxis, state.up);
    tell(labels, one, p);
  }

  function tell(labels, one, p) {
    byId("scale").hidden = !p;
    byId("legend").hidden = Boolean(p) || state.sample >= 0 || state.partition > 0;
    let what = data.partitions[state.partition].words;
    if (state.sample >= 0) {
      const k = clusters(data.sample_clusters[state.sample]);
      what = `Sample ${state.sample + 1} of ${nSamples}: ${k}.`;
    }
    if (p) {
      const sure = p.filter((x, j) => j !== one && x >= 0.5).length;
      what = `Coloured by the probability of sharing a cluster with ${rowName(one)}: `
        + `${sure} of ${n - 1} other rows share it with 50% or more.`;
    }
    byId("status").textContent = what;
  }

  // -- hovering ------------------------------------------------------------------------------------

  function showTip(_, { index, geometry }) {
    const tip = byId("tip");
    const i = index && index.indices && index.indices.length ? index.indices[0] : -1;
    tip.hidden = i < 0;
    if (i < 0) return;
    const c = shownLabels()[i];
    const best = state.sample < 0 && state.partition === 0;
    const called = best && data.cluster_names[c] ? ` (${short(data.cluster_names[c])})` : "";
    const sure = `confidence ${percent(confidence[i])}`;
    const lines = [c === NONE ? "left out" : `cluster ${c}${called}, ${sure}`];
    if (known.has(i)) lines.push("known beforehand");
    for (let a = data.principal; a < data.axes.length && lines.length < 13; a++) {
      lines.push(`${short(data.axes[a].name)}: ${shownValue(a, i)}`);
    }
    if (state.chosen.length === 1) {
      const with_ = percent(together(state.chosen[0])[i]);
      lines.push(`with ${rowName(state.chosen[0])}: ${with_}`);
    }
    const head = document.createElement("b");
    head.textContent = rowName(i);
    tip.replaceChildren(head, ...lines.map(text => {
      const line = document.createElement("div");
      line.textContent = text;
      return line;
    }));
    const box = byId("plot").getBoundingClientRect();
    const left = geometry.sx + 18 + tip.offsetWidth > box.width
      ? geometry.sx - tip.offsetWidth - 18 : geometry.sx + 18;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${Math.max(0, geometry.sy - 10)}px`;
  }

  // -- choosing rows -------------------------------------------------------------------------------

  /** Row numbers as in 3-9,12. */
  function ranges(rows) {
    const sorted = [...rows].sort((a, b) => a - b), parts = [];
    for (let i = 0; i < sorted.length;) {
      let j = i;
      while (j + 1 < sorted.length && sorted[j + 1] === sorted[j] + 1) j++;
      if (j - i >= 2) parts.push(`${sorted[i]}-${sorted[j]}`);
      else for (let k = i; k <= j; k++) parts.push(String(sorted[k]));
      i = j + 1;
    }
    return parts.join(",");
  }

  const where = new Map(data.rows.map((row, i) => [row, i]));
  const whose = new Map(data.names.map((name, i) => [name, i]));

  /** Places of the rows that a text names: numbers, ranges or names. */
  function parse(text) {
    const found = new Set(), unknown = [];
    for (const part of text.split(",").map(t => t.trim()).filter(Boolean)) {
      const range = /^(\d+)-(\d+)$/.exec(part);
      const [low, high] = range ? [Number(range[1]), Number(range[2])] : [Number(part), Number(part)];
      const inside = data.rows.map((row, i) => [row, i]).filter(([row]) => low <= row && row <= high);
      if (inside.length) inside.forEach(([, i]) => found.add(i));
      else if (whose.has(part)) found.add(whose.get(part));
      else unknown.push(part);
    }
    return [[...found].sort((a, b) => a - b), unknown];
  }

  const quote = text => (/^[\w.,=@%+\/-]+$/.test(text) ? text : `'${text.replace(/'/g, "'\\''")}'`);

  function command(how) {
    const rows = ranges(state.chosen.map(i => data.rows[i]));
    const name = byId("kind").value.trim() || "NAME";
    const option = how === "known" ? `--known ${quote(`${rows}=${name}`)}` : `--${how} ${rows}`;
    return `${data.command} ${option}`;
  }

  function choose(indices, typed = false) {
    state.chosen = indices;
    if (!typed) byId("rows").value = ranges(indices.map(i => data.rows[i]));
    byId("chosen").hidden = indices.length === 0;
    const names = indices.slice(0, 200).map(i => data.names[i]).join(", ");
    byId("names").textContent = `${indices.length} row${indices.length === 1 ? "" : "s"} chosen: `
      + names + (indices.length > 200 ? ", ..." : "");
    fillCommand();
    draw();
  }

  function fillCommand() {
    const how = byId("how").value;
    byId("kind-label").hidden = how !== "known";
    byId("command").value = state.chosen.length ? command(how) : "";
    byId("copied").textContent = "";
  }

  async function copy() {
    const box = byId("command");
    try {
      await navigator.clipboard.writeText(box.value);
    } catch { // older browsers, and pages that are not trusted
      box.select();
      document.execCommand("copy");
    }
    byId("copied").textContent = "Copied.";
  }

  // -- controls ------------------------------------------------------------------------------------

  function options(select, texts) {
    select.replaceChildren(...texts.map((text, value) => {
      const option = document.createElement("option");
      option.textContent = short(text);
      option.value = String(value);
      return option;
    }));
  }

  function showSample(s) {
    state.sample = s;
    byId("sample").value = String(s + 1);
    if (state.chosen.length) choose([]);
    else draw();
  }

  function stop() {
    clearInterval(state.timer);
    state.timer = 0;
    byId("play").textContent = "Play";
  }

  function play() {
    if (state.timer) return stop();
    byId("play").textContent = "Pause";
    state.timer = setInterval(() => showSample((state.sample + 1) % nSamples), 500);
  }

  function step(by) {
    stop();
    showSample((Math.max(state.sample, by > 0 ? -1 : 0) + by + nSamples) % nSamples);
  }

  function showPartition(k) {
    stop();
    state.sample = -1;
    byId("sample").value = "0";
    state.partition = k;
    if (state.chosen.length) choose([]);
    else draw();
  }

  function toggleScheme() {
    document.documentElement.dataset.scheme = isDark() ? "light" : "dark";
    scheme();
    draw();
  }

  function connect() {
    options(byId("across"), data.axes.map(a => a.name));
    options(byId("up"), data.axes.map(a => a.name));
    byId("up").value = String(state.up);
    options(byId("partition"), data.partitions.map(p => p.name));
    byId("sample").max = String(nSamples);
    byId("across").onchange = e => { state.across = Number(e.target.value); draw(); };
    byId("up").onchange = e => { state.up = Number(e.target.value); draw(); };
    byId("partition").onchange = e => showPartition(Number(e.target.value));
    byId("sample").oninput = e => { stop(); showSample(Number(e.target.value) - 1); };
    byId("back").onclick = () => step(-1);
    byId("forward").onclick = () => step(1);
    byId("play").onclick = play;
    byId("rows").onchange = e => {
      const [indices, unknown] = parse(e.target.value);
      choose(indices, true);
      if (unknown.length) byId("status").textContent = `There is no row ${unknown.join(", ")} here.`;
    };
    byId("clear").onclick = () => choose([]);
    byId("how").onchange = byId("kind").oninput = fillCommand;
    byId("copy").onclick = copy;
    byId("scheme").onclick = toggleScheme;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      scheme();
      draw();
    });
    byId("plot").addEventListener("mouseleave", () => { byId("tip").hidden = true; });
    source.selected.properties.indices.change.connect(() => {
      const now = Array.from(source.selected.indices).sort((a, b) => a - b);
      if (now.join() !== state.chosen.join()) choose(now);
    });
  }

  connect();
  scheme();
  draw();
  document.documentElement.classList.add("scripted");
  Bokeh.Plotting.show(figure, byId("canvas")).then(view => {
    // for the curious, and for tests
    globalThis.report = { data, figure, source, state, together, parse, view };
    document.documentElement.dataset.ready = "yes";
  });
})();
