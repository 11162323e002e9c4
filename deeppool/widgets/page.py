"""What only the page knows of a notebook: whether it is dark."""

from typing import Any

import anywidget
import traitlets


class Page(anywidget.AnyWidget):
    """An empty widget that tells the kernel about the page that shows it; it must be shown for that."""

    _esm = """
    function isDark() {
      // JupyterLab says so; elsewhere the background's lightness does.
      const told = document.body.dataset.jpThemeLight;
      if (told !== undefined) return told === "false";
      const seen = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g)?.map(Number) ?? [];
      if (seen.length < 3 || seen[3] === 0) return matchMedia("(prefers-color-scheme: dark)").matches;
      return 0.299 * seen[0] + 0.587 * seen[1] + 0.114 * seen[2] < 128;
    }
    function render({ model, el }) {
      el.style.display = "none";
      const tell = () => {
        if (model.get("dark") === isDark()) return;
        model.set("dark", isDark());
        model.save_changes();
      };
      tell();
      const watcher = new MutationObserver(tell);
      watcher.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
      return () => watcher.disconnect();
    }
    export default { render };
    """
    dark: Any = traitlets.Bool(False).tag(sync=True)
