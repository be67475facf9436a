// Read the payload and fill the page.

const payload = JSON.parse(document.getElementById("payload").textContent);
const runs = payload.runs.map((record) => new Run(record));

themeChoice();
explore(runs);
rank(runs);
stageTable(runs);
convergence(runs);
descent(runs);
fullWeights(runs);
perturbations(runs);
document.documentElement.dataset.ready = "yes";
