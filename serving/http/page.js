// The server's page: sends the text of the box to /v1/classify and shows the answer. Where the server
// needs a token, the page first asks for it and replaces itself by the page that the token opens.
(() => {
  const make = (name, text, of = {}) => Object.assign(document.createElement(name), { textContent: text }, of);
  const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;
  let token = null;

  const ask = (path, more = {}) => fetch(path, {
    ...more, headers: { ...more.headers, ...(token && { Authorization: `Bearer ${token}` }) },
  });
  const show = (...parts) => document.getElementById("answer").replaceChildren(...parts);
  const refusal = async (answer) => {
    const body = await answer.json().catch(() => ({}));
    return [body.what || `the server answered ${answer.status}`, body.expected && `expected: ${body.expected}`, body.remedy]
      .filter(Boolean).join("; ");
  };

  const scores = (of, chosen) => {
    const table = make("table", "", { className: "bars" });
    const best = Object.entries(of).sort((a, b) => b[1] - a[1]).slice(0, 10);
    for (const [label, score] of best) {
      const bar = make("i", "");
      bar.style.width = `${100 * score}%`;
      const name = make("th", "", { scope: "row" });
      name.append(make("bdi", label, { className: chosen.includes(label) ? "good" : "" }));
      const cell = make("td", "", { className: "bar" });
      cell.append(bar);
      const row = make("tr", "");
      row.append(name, make("td", percent(score)), cell);
      table.append(row);
    }
    const more = Object.keys(of).length - best.length;
    return more > 0 ? [table, make("p", `and ${more} more labels`, { className: "dim" })] : [table];
  };

  const parts = ({ prediction, model, version }, milliseconds) => {
    if (prediction.error) return [make("p", `No prediction: ${prediction.error}.`, { className: "bad" })];
    const { label, labels = label ? [label] : [], value } = prediction;
    const none = prediction.rejected ? "rejected: no score is high enough" : "no label";
    const word = value === undefined ? labels.join(", ") || none : String(Number(value.toPrecision(6)));
    const source = `${milliseconds} ms, ${model}${version === null ? "" : ` version ${version}`}`;
    return [
      make("p", word, { className: "word", id: "predicted" }),
      ...(prediction.scores ? scores(prediction.scores, labels) : []),
      make("p", source, { className: "dim" }),
    ];
  };

  const classify = async () => {
    const texts = [...document.querySelectorAll("textarea[name=text]")].map((box) => box.value);
    const began = performance.now();
    const answer = await ask("v1/classify", {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ text: texts.length > 1 ? texts : texts[0] }),
    });
    if (!answer.ok) return show(make("p", await refusal(answer), { className: "bad" }));
    return show(...parts(await answer.json(), Math.max(1, Math.round(performance.now() - began))));
  };

  const open = async () => {
    token = document.getElementById("token").value.trim();
    const answer = await ask("./");
    if (!answer.ok) return show(make("p", await refusal(answer), { className: "bad" }));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.title = page.title;
    for (const part of ["main", ".head"]) {
      document.querySelector(part).replaceWith(page.querySelector(part));
    }
    address();
    return document.getElementById("text-1").focus();
  };

  // The server does not see the proxy with TLS that may stand in front of it; the browser does.
  const address = () => document.querySelectorAll("pre").forEach((call) => {
    call.textContent = call.textContent.replace(/http:\/\/[^/\s]+/, location.origin);
  });
  address();

  document.addEventListener("submit", (event) => {
    event.preventDefault();
    const button = event.target.querySelector("button");
    button.disabled = true;
    (event.target.id === "login" ? open : classify)()
      .catch((error) => show(make("p", `The server does not answer (${error.message}).`, { className: "bad" })))
      .finally(() => { button.disabled = false; });
  });
  // Ctrl+Enter sends, since Enter begins a new line.
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.name === "text") {
      event.target.form.requestSubmit();
    }
  });
})();
