// Reports the page's theme, routes keys, resizes figures, and says when a click got no answer from the kernel.

const ANSWER_SECONDS = 5;
const UNANSWERED =
  `No answer to a click for ${ANSWER_SECONDS} s: the kernel is running a cell, or it no longer hears this widget ` +
  "(then reload the page and run the cell again). A run can be ended in a terminal: <code>deeppool running</code> " +
  "lists your runs, and <code>deeppool running --stop NAME</code> ends one.";

const RESTARTED =
  "The kernel was restarted, so this panel and its runs are gone: run the cell again. Records that were saved are kept.";

function isDark() {
  // JupyterLab sets an attribute; elsewhere the background's lightness decides.
  const light = document.body.dataset.jpThemeLight;
  if (light !== undefined) return light === "false";
  const rgba = getComputedStyle(document.body).backgroundColor.match(/[\d.]+/g)?.map(Number) ?? [];
  if (rgba.length < 3 || rgba[3] === 0) return matchMedia("(prefers-color-scheme: dark)").matches;
  return 0.299 * rgba[0] + 0.587 * rgba[1] + 0.114 * rgba[2] < 128;
}

const NARROW = 560; // pixels of a panel below which the label of a control stands above it
const WIDTH_STEP = 20; // pixels; a scroll bar that comes and goes changes nothing

// A slider's handle has no name, and its value is the number of an option.
function describe(event) {
  const handle = event.target.closest?.(".noUi-handle");
  const slider = handle?.closest(".widget-slider, .widget-inline-hbox");
  if (!slider) return;
  const text = (part) => slider.querySelector(part)?.textContent.trim() ?? "";
  handle.setAttribute("aria-label", text(".widget-label"));
  handle.setAttribute("aria-valuetext", text(".widget-readout"));
}

function attach(panel, clicked, resized) {
  // Otherwise JupyterLab treats arrows and letters as notebook commands: "b" in a list inserts a cell.
  // It checks the focused element; Ctrl-S and the like stay JupyterLab's.
  const claim = (event) => {
    if (!panel.contains(event.target)) return;
    event.target.toggleAttribute("data-lm-suppress-shortcuts", !event.ctrlKey && !event.metaKey);
  };
  window.addEventListener("keydown", claim, true);
  panel.addEventListener("click", clicked, true);
  panel.addEventListener("focusin", describe);
  panel.addEventListener("keyup", describe);
  const resize = () => {
    // A figure whose height was changed keeps its width, and plotly then leaves it as it is.
    for (const plot of panel.querySelectorAll(".js-plotly-plot")) {
      if (plot.layout) delete plot.layout.width;
    }
    // plotly only listens to the window.
    window.dispatchEvent(new Event("resize"));
    panel.classList.toggle("dp-narrow", panel.clientWidth < NARROW);
    resized(WIDTH_STEP * Math.floor(panel.clientWidth / WIDTH_STEP));
  };
  const sizes = new ResizeObserver(resize);
  sizes.observe(panel);
  return () => {
    sizes.disconnect();
    window.removeEventListener("keydown", claim, true);
    panel.removeEventListener("click", clicked, true);
    panel.removeEventListener("focusin", describe);
    panel.removeEventListener("keyup", describe);
  };
}

function render({ model, el }) {
  el.setAttribute("role", "alert");
  el.style.cssText = "display: none; color: var(--jp-error-color1, #b00)";
  // Screen readers announce a text that is new in an alert.
  const say = (text) => {
    el.innerHTML = text;
    el.style.display = text ? "" : "none";
  };
  let timer;
  const clicked = (event) => {
    // A panel inside this one answers for its buttons.
    const button = event.target.closest(".dp-click");
    if (!button || button.closest(".dp-panel") !== el.closest(".dp-panel")) return;
    timer ??= setTimeout(say, 1000 * ANSWER_SECONDS, UNANSWERED);
  };
  const answered = () => {
    clearTimeout(timer);
    timer = undefined;
    say("");
  };
  const told = (message) => {
    answered();
    if (message.reveal) reveal(message.reveal);
    if (message.copy === undefined) return;
    const copied = navigator.clipboard?.writeText(message.copy) ?? Promise.reject();
    copied.then(
      () => note("Copied."),
      () => note("The browser allows no copying: click the code, and press Ctrl-C."),
    );
  };
  // An error may be far above the button that caused it.
  const reveal = (part) => requestAnimationFrame(() => {
    const panel = el.closest(".dp-panel");
    const parts = [...(panel?.querySelectorAll(part) ?? [])];
    parts.find((each) => each.closest(".dp-panel") === panel)?.scrollIntoView({ block: "nearest" });
  });
  // The code is drawn by another widget, so it may come later.
  const note = (text) => requestAnimationFrame(() => {
    el.closest(".dp-panel")?.querySelectorAll(".dp-code").forEach((code) => (code.dataset.note = text));
  });
  model.on("msg:custom", told);
  // JupyterLab disconnects every widget of a kernel that is restarted.
  const lost = () => {
    clearTimeout(timer);
    // The panel around this one says so.
    if (!el.closest(".dp-panel")?.parentElement.closest(".dp-panel")) say(RESTARTED);
  };
  model.on("comm_live_update", lost);
  // The kernel wraps the texts of figures, which plotly cuts.
  const resized = (width) => {
    if (!width || model.get("width") === width) return;
    model.set("width", width);
    model.save_changes();
  };
  let detach = () => {};
  // A widget is rendered before it is added to its panel.
  requestAnimationFrame(() => {
    const panel = el.closest(".dp-panel");
    if (panel) detach = attach(panel, clicked, resized);
  });
  const report = () => {
    if (model.get("dark") === isDark()) return;
    model.set("dark", isDark());
    model.save_changes();
  };
  report();
  const watcher = new MutationObserver(report);
  watcher.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
  return () => {
    clearTimeout(timer);
    model.off("msg:custom", told);
    model.off("comm_live_update", lost);
    watcher.disconnect();
    detach();
  };
}

export default { render };
