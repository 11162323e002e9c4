// Ranks of one process over socket pairs, for ThreadSanitizer: rounds, then every way to end.
//
// Reads from standard input: ranks, mode, rounds, how ranks end (0 drain, 1 agreed, 2 the first leaves), and for each
// rank the number of its steps, then kind and peer of each. Exits with 1 where a sum is wrong.
#include <cstdio>
#include <iostream>

#include "engine.cpp"

namespace {

struct Settings {
  int32_t ranks, mode, rounds, ending;
};

int64_t take(void* engine, const Settings& settings) {
  std::vector<int64_t> counts(static_cast<size_t>(settings.ranks));
  int64_t total, sum = 0;
  while (deeppool_take(engine, counts.data(), reinterpret_cast<char*>(&total)) >= 0) sum += total;
  return sum;
}

// Returns the sum of all that a rank received.
int64_t train(const Settings& settings, int32_t rank, const std::vector<int32_t>& steps, const std::vector<int32_t>& fds) {
  int32_t integers[] = {rank, settings.ranks, settings.mode, 1, 3, 0, 0, 2};
  void* engine = deeppool_start(integers, settings.mode == 0 ? 0.0002 : 0.0, 7, 1, steps.data(),
                                static_cast<int32_t>(steps.size() / 2), fds.data());
  int64_t sum = 0, left = -9, found[4] = {};
  // Ranks agree to end after a round, and else after as many gradients.
  for (int32_t round = 0; settings.ending == 1 ? found[1] < settings.rounds : round < settings.rounds; ++round) {
    if (settings.ending == 2 && rank == 0 && round == settings.rounds / 2) break;
    int64_t one = 1;
    deeppool_add(engine, reinterpret_cast<const char*>(&one), 1, 1);
    deeppool_pending(engine, reinterpret_cast<char*>(&one));
    if ((left = deeppool_wait(engine, 20.0)) <= -2) break;  // a rank has failed
    sum += take(engine, settings);
    deeppool_state(engine, found);
  }
  if (settings.ending == 0) {
    deeppool_finish(engine);
    while (deeppool_wait(engine, 20.0) > 0) sum += take(engine, settings);
  }
  deeppool_stop(engine, settings.ending == 1, 5.0);
  return sum;
}

}  // namespace

int main() {
  Settings settings{};
  std::cin >> settings.ranks >> settings.mode >> settings.rounds >> settings.ending;
  auto ranks = static_cast<size_t>(settings.ranks);
  std::vector<std::vector<int32_t>> steps(ranks), fds(ranks, std::vector<int32_t>(ranks, -1));
  for (auto& mine : steps) {
    size_t count;
    std::cin >> count;
    mine.resize(2 * count);
    for (auto& number : mine) std::cin >> number;
  }
  for (size_t one = 0; one < ranks; ++one)
    for (size_t other = one + 1; other < ranks; ++other) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 2;
      fds[one][other] = pair[0];
      fds[other][one] = pair[1];
    }
  std::vector<int64_t> sums(ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { sums[rank] = train(settings, static_cast<int32_t>(rank), steps[rank], fds[rank]); });
  for (auto& thread : threads) thread.join();
  if (settings.ending != 0) return 0;
  for (int64_t sum : sums)
    if (sum != static_cast<int64_t>(ranks) * settings.rounds) return std::fprintf(stderr, "sum %ld\n", long(sum)), 1;
  return 0;
}
