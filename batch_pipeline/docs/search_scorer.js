// Scores of search results: pages and sections whose titles have the words of the query come first.
var Scorer = {
  score: ([, title, , , score, , kind]) => {
    const query = new URLSearchParams(window.location.search).get("q") || "";
    const words = query.toLowerCase().split(/\W+/).filter((word) => word.length > 1);
    const inTitle = words.filter((word) => title.toLowerCase().includes(word.replace(/s$/, "")));
    const share = words.length ? inTitle.length / words.length : 0;
    return score + 20 * share - (kind === "object" ? 20 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
