// Asks for the same page again and puts its `main` in, unless nobody looks, or somebody is at a field or has marked a text.
(() => {
  const every = Number(document.currentScript.dataset.every);
  if (!every) return;
  const busy = () => document.hidden || document.activeElement.closest("main form, main a") || String(getSelection());
  const again = async () => {
    try {
      if (!busy()) {
        const answer = await fetch(location.href, {headers: {accept: "text/html"}});
        const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
        if (answer.status === 401) return location.reload();
        if (next && !busy()) document.querySelector("main").replaceWith(document.adoptNode(next));
      }
    } catch { /* The service is away for a moment. */ }
    setTimeout(again, every);
  };
  setTimeout(again, every);
})();
