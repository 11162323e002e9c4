// When a round fires: deeppool/collectives/partial/firing.py, which explains it, in C++.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

namespace deeppool {

constexpr double kNever = std::numeric_limits<double>::infinity();

enum class Mode : int32_t { solo = 0, majority = 1, quorum = 2, full = 3, straggler_aware = 4 };

struct Rule {
  int32_t ranks;
  Mode mode;
  int32_t quorum;             // arrivals that fire a round: 1 unless the mode is quorum
  int32_t staleness_limit;    // 0: none
  int32_t synchronous_every;  // 0: none
  double grace;
  uint64_t seed;

  static uint64_t mix(uint64_t x) {  // splitmix64
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

  int32_t initiator(int64_t number) const {
    return static_cast<int32_t>(mix(mix(seed) + static_cast<uint64_t>(number)) % static_cast<uint64_t>(ranks));
  }

  bool is_synchronous(int64_t number, const std::vector<int64_t>& taken) const {
    if (mode >= Mode::full || (synchronous_every && (number + 1) % synchronous_every == 0)) return true;
    return staleness_limit && number - *std::min_element(taken.begin(), taken.end()) >= staleness_limit;
  }

  // When a round that does not wait for all ranks fires if nobody else arrives.
  double fires_at(int64_t number, const std::map<int32_t, double>& arrivals) const {
    std::vector<double> times;
    for (const auto& arrival : arrivals) times.push_back(arrival.second);
    std::sort(times.begin(), times.end());
    if (times.size() >= static_cast<size_t>(ranks)) return times.back();
    if (mode == Mode::majority) {
      auto found = arrivals.find(initiator(number));
      return found == arrivals.end() ? kNever : found->second + grace;
    }
    return times.size() >= static_cast<size_t>(quorum) ? times[quorum - 1] + grace : kNever;
  }
};

}  // namespace deeppool
